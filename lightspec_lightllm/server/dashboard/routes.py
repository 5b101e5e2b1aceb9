"""Routes of the dashboard."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse

from lightspec_lightllm.server.dashboard.assets import page_assets
from lightspec_lightllm.server.telemetry import Telemetry

POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; object-src 'none'; "
    "base-uri 'none'; frame-ancestors 'self'"
)
"""Nothing but this server is ever asked; plotly writes its styles into the page."""


def dashboard_router(telemetry: Telemetry) -> APIRouter:
    """The page at ``/lightspec/``, its assets, and what it reads: ``/lightspec/history`` and ``/lightspec/events``.

    Raises:
        ConfigError: plotly, whose charts the page draws with, is not installed.
    """
    router = APIRouter(prefix="/lightspec", include_in_schema=False)
    assets = page_assets()
    page = assets.pop("index.html")

    @router.get("/")
    def index(request: Request) -> Response:
        response = page.response(request)
        response.headers["Content-Security-Policy"] = POLICY
        return response

    @router.get("/assets/{name}")
    def asset(name: str, request: Request) -> Response:
        if name not in assets:
            raise HTTPException(404, f"asset: expected one of {', '.join(sorted(assets))}, got {name!r}")
        return assets[name].response(request)

    @router.get("/history")
    def history() -> Response:
        return Response(telemetry.history(), media_type="application/json", headers={"Cache-Control": "no-store"})

    @router.get("/events")
    async def events(
        after: Annotated[int | None, Query(description="the last second that the reader has")] = None,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        if last_event_id is not None and last_event_id.isdecimal():
            after = int(last_event_id)
        return StreamingResponse(
            telemetry.follow(after),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    return router
