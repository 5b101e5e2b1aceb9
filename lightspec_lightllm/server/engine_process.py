"""Where an engine runs: a process of its own, or a thread beside the front."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lightspec_lightllm.config import Config
from lightspec_lightllm.decode.loops_log import log_loops
from lightspec_lightllm.engine.fetch import MODEL_MEMBER
from lightspec_lightllm.errors import LightspecError
from lightspec_lightllm.server.messages import Loading, NotStarted

if TYPE_CHECKING:
    from lightspec_lightllm.adapters.embedded import EmbeddedRuntime
    from lightspec_lightllm.decode import Round

STOP_SECONDS = 10.0
"""How long an engine may take to end its round before it is killed."""

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

logger = logging.getLogger(__name__)


class RunningEngine(Protocol):
    """An engine that was started. Its first message is `EngineInfo` or `NotStarted`; `Loading` may come before it."""

    connection: Connection

    def wait(self) -> str:
        """Wait until it has ended, which `Stop` makes it do; says how it ended."""


class EngineProcess:
    """A fresh process with an engine. A program of this module rather than a fork or a spawn: it needs neither the
    front's threads nor its main module."""

    def __init__(self, config: Config) -> None:
        self.connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this module under this interpreter
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C on the terminal is the front's to handle
            )
        self.connection.send(config)

    def wait(self) -> str:
        """See `RunningEngine`."""
        try:
            status = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return f"did not end within {STOP_SECONDS:.0f} s and was killed"
        return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"


class EngineThread:
    """An engine in this process, on a runtime that is loaded already."""

    def __init__(self, runtime: EmbeddedRuntime, config: Config) -> None:
        self.connection, self._theirs = Pipe()
        self._end = "ended"
        self._thread = threading.Thread(target=self._run, args=(runtime, config), name="lightspec-engine", daemon=True)
        self._thread.start()

    def _run(self, runtime: EmbeddedRuntime, config: Config) -> None:
        with self._theirs:
            try:
                serve_runtime(runtime, config, self._theirs)
            except Exception as error:
                logger.exception("the engine's thread failed")
                self._end = f"failed with {type(error).__name__}: {error}"

    def wait(self) -> str:
        """See `RunningEngine`."""
        self._thread.join(STOP_SECONDS)
        return self._end


def model_name(config: Config) -> str:
    """The name of the model's file, without its ending."""
    return Path(config.model.path or MODEL_MEMBER).stem


def configured_rounds(runtime: EmbeddedRuntime, config: Config) -> Round:
    """Rounds of the strategy that the configuration names."""
    choice = config.planner.resolve(config.planner.strategy)
    return runtime.round(choice.strategy, **choice.options)


def serve_runtime(runtime: EmbeddedRuntime, config: Config, connection: Connection) -> None:
    """Say that the engine is ready, then serve until the front closes the connection."""
    from lightspec_lightllm.server.engine_loop import EngineLoop, engine_info

    rounds = configured_rounds(runtime, config)
    log_loops(logger)
    gc.collect()
    gc.freeze()  # to look through all that is there by now, a compiler too, takes 0.1 s in the midst of a round
    connection.send(engine_info(runtime, model_name(config), config.planner.strategy))
    EngineLoop(runtime, rounds, connection).run()


def main(descriptor: int) -> int:
    """The engine's process: open what the configuration names, serve it, end when the front goes."""
    logging.basicConfig(format=LOG_FORMAT, level=logging.INFO)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the front drains first, then closes the connection
    with Connection(descriptor) as connection:
        try:
            config: Config = connection.recv()
            runtime = _open(config, connection)
            if runtime is None:
                return os.EX_CONFIG
            serve_runtime(runtime, config, connection)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            logger.info("the server's front has gone; the engine ends")
        except Exception:
            logger.exception("the engine failed")
            return os.EX_SOFTWARE
    return os.EX_OK


def _open(config: Config, connection: Connection) -> EmbeddedRuntime | None:
    """None, and the front told why, where the configuration cannot be served."""
    from lightspec_lightllm.adapters.embedded import EmbeddedRuntime

    def loading(step: str, done: int, total: int) -> None:
        if connection.poll():
            raise EOFError  # before the engine is ready nothing comes but the order to end
        connection.send(Loading(step, done, total))

    try:
        return EmbeddedRuntime.open(config, progress=loading)
    except LightspecError as error:
        connection.send(NotStarted(str(error)))
        return None


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
