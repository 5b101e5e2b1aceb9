"""Errors of the API, as clients are told them: OpenAI's form for every path.

``{"error": {"message": ..., "type": ..., "param": ..., "code": ...}}``
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightspec_lightllm.errors import LightspecError


class ApiError(LightspecError):
    """An answer that is an error.

    Attributes:
        status: of HTTP.
        kind: ``type`` in the answer.
        param: the field of the request that is at fault, or None.
        code: a word for programs, or None.
        headers: of the answer.
    """

    status = 500
    kind = "server_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        return error_body(str(self), self.kind, self.param, self.code)


class BadRequestError(ApiError):
    """The request can never be served as it was asked."""

    status = 400
    kind = "invalid_request_error"


class UnknownModelError(ApiError):
    """Another model than the one that is served."""

    status = 404
    kind = "invalid_request_error"

    def __init__(self, asked: str, served: str) -> None:
        super().__init__(
            f"the model {shown(asked)} does not exist; this server serves {served!r}",
            param="model",
            code="model_not_found",
        )


class QueueFullError(ApiError):
    """Too many sequences are in flight; worth asking again after ``seconds``."""

    status = 429
    kind = "rate_limit_error"

    def __init__(self, in_flight: int, limit: int, asked: int, seconds: int) -> None:
        super().__init__(
            f"the queue is full: {in_flight} of {limit} sequences are in flight, this request asks for {asked} more; "
            f"try again in {seconds} s",
            code="queue_full",
            headers={"Retry-After": str(seconds)},
        )


class EngineUnavailableError(ApiError):
    """The engine ended before the answer did, or is not up."""

    status = 503
    kind = "server_error"

    def __init__(self, message: str, *, seconds: int | None = None) -> None:
        super().__init__(
            message,
            code="engine_unavailable",
            headers={} if seconds is None else {"Retry-After": str(seconds)},
        )


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def shown(value: object) -> str:
    """What a client sent, short and in plain characters: it may be a megabyte, or no Unicode at all."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"
