"""How a server is run. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lightspec_lightllm.errors import ConfigError


@dataclass(frozen=True)
class ServerOptions:
    """Attributes:
    host: address to listen at.
    port: 0: any that is free.
    served_model_name: what the model is called; None: its file's name.
    max_waiting: sequences that may wait beside those that decode; more are answered with 429.
    max_body_mb: megabytes of a request's body; more are answered with 413.
    drain_seconds: how long answers in flight may take after the server was told to end.
    trace: a file that every round is appended to, as a line of JSON; None: none.
    access_log: one log line per request.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    max_waiting: int = 256
    max_body_mb: int = 8
    drain_seconds: int = 60
    trace: Path | None = None
    access_log: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port: expected 0 to 65535, got {self.port}")
        for name, least in (("max_waiting", 0), ("max_body_mb", 1), ("drain_seconds", 1)):
            if getattr(self, name) < least:
                flag = "--" + name.replace("_", "-")
                raise ConfigError(f"{flag}: expected at least {least}, got {getattr(self, name)}")
        if self.served_model_name is not None and not self.served_model_name.strip():
            raise ConfigError("--served-model-name: expected a name, got an empty one")
