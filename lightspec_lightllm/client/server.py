"""The server under measurement, beside its answers: is it up, what does it serve, what do its metrics say."""

import asyncio
import os
import time

from lightspec_lightllm.client.apis import APIS, message_of
from lightspec_lightllm.client.options import ClientOptions
from lightspec_lightllm.client.request import Sender
from lightspec_lightllm.client.speculation import Reading
from lightspec_lightllm.client.tokens import token_counter
from lightspec_lightllm.errors import ConfigError, EndpointError
from lightspec_lightllm.machine import version_of

KEEP_ALIVE = 3.0
"""Seconds. Shorter than the 5 s after which uvicorn closes an idle connection, which a request would then meet."""
SHORT = 30.0
"""Seconds for a question that takes no generation."""


def check_installed() -> None:
    """Raises ConfigError when this installation has no HTTP client."""
    if version_of("aiohttp") is None:
        raise ConfigError("measuring a server needs aiohttp; install lightspec_lightllm[client]")


class Server:
    """A server at ``options.base_url``. To be used inside ``async with``, which closes its connections."""

    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self.url = options.base_url

    async def __aenter__(self) -> "Server":  # noqa: PYI034 - typing.Self needs Python 3.11
        import aiohttp

        key = os.environ.get("OPENAI_API_KEY")
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE),
            headers=({"Authorization": f"Bearer {key}"} if key else {}) | self.options.headers,
            timeout=aiohttp.ClientTimeout(total=SHORT),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def sender(self) -> Sender:
        """What sends the options' requests. Raises EndpointError when the server cannot be reached."""
        options = self.options
        return Sender(
            self.session,
            APIS[options.api],
            self.url,
            await self._model(),
            options.sampling,
            count=token_counter(options.tokenizer) if options.tokenizer else None,
            timeout=options.timeout,
            max_retries=options.max_retries,
        )

    async def _model(self) -> str:
        """The model that was asked for, or the first that the server names."""
        listed, problem = await self._first_model()
        if self.options.model is not None:
            return self.options.model
        if listed is None and self.options.api != "lightllm":  # whose requests do not name a model
            raise EndpointError(f"{self.url}/v1/models names no model ({problem}); check --url, or give --model")
        return listed or "unknown"

    async def _first_model(self) -> tuple[str | None, str]:
        """What /v1/models lists first, or None and why. Waits, as long as it may, for a server that is starting."""
        import aiohttp

        deadline = time.monotonic() + self.options.wait
        while True:
            try:
                async with self.session.get(f"{self.url}/v1/models") as response:
                    if response.status == 200:
                        return str((await response.json(content_type=None))["data"][0]["id"]), ""
                    problem = f"HTTP {response.status}"
                    if response.status < 500 or time.monotonic() >= deadline:
                        return None, problem
            except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
                if time.monotonic() >= deadline:
                    raise EndpointError(
                        f"no server answers at {self.url} ({type(error).__name__}: {error}); "
                        "start it, check --url, or give it time with --wait"
                    ) from None
            except (ValueError, KeyError, IndexError, TypeError):
                return None, "an answer of another form"
            await asyncio.sleep(0.5)

    async def read_metrics(self) -> Reading | None:
        """The counters of /metrics; None where the server has no such page."""
        import aiohttp

        try:
            async with self.session.get(f"{self.url}/metrics") as response:
                return Reading.of(await response.text(errors="replace")) if response.status == 200 else None
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
            return None

    async def flush(self) -> None:
        """Empties the server's prefix cache by ``flush_path``. Raises EndpointError when that fails."""
        import aiohttp

        path = self.options.flush_path
        if path is None:
            return
        url = f"{self.url}/{path.lstrip('/')}"
        try:
            async with self.session.post(url) as response:
                if response.status >= 300:
                    raise EndpointError(
                        f"--flush-path: {url} answered HTTP {response.status}: {message_of(await response.text())}"
                    )
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            raise EndpointError(f"--flush-path: {url} cannot be reached: {type(error).__name__}: {error}") from None
