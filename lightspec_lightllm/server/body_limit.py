"""No body is larger than what a prompt can be: it would be held in memory before anyone looks at it."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOO_LARGE = 413


class BodyLimit:
    """Answers 413 as soon as a body that is read turns out to have more than ``max_bytes``, announced or counted."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        announced = dict(scope.get("headers", ())).get(b"content-length", b"0")
        seen = int(announced[:20]) if announced.isdigit() else 0
        if seen <= self.max_bytes:
            seen = 0

        async def counted() -> Message:
            nonlocal seen
            if seen <= self.max_bytes:
                message = await receive()
                seen += len(message.get("body", b""))
            if seen > self.max_bytes:
                raise HTTPException(TOO_LARGE, f"the body is larger than {self.max_bytes} bytes; shorten the prompt")
            return message

        await self.app(scope, counted, send)
