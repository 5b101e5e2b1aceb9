"""Answers that end when their client goes away, and errors in the API's form."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from lightspec_lightllm.server.engine_client import Generation
from lightspec_lightllm.server.errors import ApiError

T = TypeVar("T")

CLIENT_GONE = 499
"""The status that nobody reads any more, as nginx logs it."""

logger = logging.getLogger(__name__)


def error_response(error: ApiError) -> JSONResponse:
    return JSONResponse(error.body(), error.status, error.headers)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of ``work``, which is cancelled when the client goes away; None then.

    To be called after the request's body has been read.
    """

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


class EventStream(Response):
    """Server-sent events made of a generation, which it owns.

    Args:
        generation: cancelled when the stream ends, however it does.
        events: what follows ``data:`` of each event. Where it raises ApiError the last event is the error.
        space: what stands between ``data:`` and it.
    """

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, events: AsyncIterator[str], *, space: str = " ") -> None:
        super().__init__(headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._generation = generation
        self._events = events
        self._space = space

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's
        async with self._generation:
            await unless_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for event in self._events:
                await self._send_event(send, event)
        except ApiError as error:
            await self._send_event(send, json.dumps(error.body()))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_event(self, send: Send, event: str) -> None:
        body = f"data:{self._space}{event}\n\n".encode()
        await send({"type": "http.response.body", "body": body, "more_body": True})
