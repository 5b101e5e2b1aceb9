"""The application: the APIs' routes, health, metrics, status, and every error in one form."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from lightspec_lightllm import __version__
from lightspec_lightllm.server.body_limit import BodyLimit
from lightspec_lightllm.server.dashboard import dashboard_router
from lightspec_lightllm.server.errors import ApiError, BadRequestError, error_body, shown
from lightspec_lightllm.server.intake import Intake
from lightspec_lightllm.server.lightllm_api import lightllm_router
from lightspec_lightllm.server.metrics import Metrics
from lightspec_lightllm.server.openai.routes import ERRORS, openai_router
from lightspec_lightllm.server.responses import error_response
from lightspec_lightllm.server.status import StatusBoard
from lightspec_lightllm.server.supervisor import Supervisor
from lightspec_lightllm.server.telemetry import Telemetry

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"

logger = logging.getLogger(__name__)


def create_app(
    intake: Intake,
    supervisor: Supervisor,
    metrics: Metrics,
    telemetry: Telemetry,
    status: StatusBoard,
    *,
    max_body_bytes: int,
) -> FastAPI:
    """Raises ConfigError where the dashboard's charts are not installed."""
    app = FastAPI(title="lightspec", version=__version__, summary="Dynamic speculative decoding, served")
    app.include_router(openai_router(intake))
    app.include_router(lightllm_router(intake, ERRORS))
    app.include_router(dashboard_router(telemetry))

    @app.api_route("/health", methods=["GET", "HEAD"], tags=["Server"], operation_id="health", responses={503: {}})
    async def health() -> Response:
        """200 while the engine is ready, 503 otherwise."""
        content = {"status": supervisor.state}
        return JSONResponse(content, 200 if supervisor.state == "ready" else 503)

    @app.get("/metrics", tags=["Server"], response_class=Response)
    async def exposition() -> Response:
        """Prometheus' text form."""
        return Response(metrics.exposition(), media_type=EXPOSITION)

    @app.get("/lightspec/status", tags=["Server"])
    async def current_status() -> dict[str, Any]:
        """What is served, what the engine holds and what it did so far."""
        return status.snapshot()

    @app.exception_handler(ApiError)
    async def refused(_request: Request, error: ApiError) -> Response:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        return error_response(_explain(error))

    @app.exception_handler(HTTPException)
    async def known(_request: Request, error: HTTPException) -> Response:
        kind = "invalid_request_error" if error.status_code < 500 else "server_error"
        return JSONResponse(error_body(error.detail, kind), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return JSONResponse(error_body(f"internal error: {type(error).__name__}", "server_error"), 500)

    app.add_middleware(BodyLimit, max_bytes=max_body_bytes)
    return app


def _explain(error: RequestValidationError) -> BadRequestError:
    """The first complaint, with the field it is about; of the cases of a union the one that got furthest."""
    complaints = error.errors()
    field = complaints[0]["loc"][:2]
    first = max((one for one in complaints if one["loc"][:2] == field), key=_progress)
    place = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return BadRequestError(f"the body is not JSON: {first.get('ctx', {}).get('error', first['msg'])}")
    param = ".".join(part for part in place if not _CASE.search(part)) or None
    if first["type"] == "value_error":
        # Of several fields together: the message begins with the name of one.
        message = str(first["ctx"]["error"])
        name, colon, rest = message.partition(": ")
        if colon and name.isidentifier():
            param, message = ".".join([*filter(None, [param]), name]), rest
    elif first["type"] == "extra_forbidden":
        message = "this field is not known to this server"
    elif first["type"] == "missing":
        message = "this field is required" if param else "a JSON body is required"
    else:
        message = f"{first['msg'][0].lower()}{first['msg'][1:]}, got {shown(first['input'])}"
    if param is not None:
        message = f"{param}: {message}"
    return BadRequestError(message.encode("ascii", "backslashreplace").decode(), param=param)


def _progress(complaint: Mapping[str, Any]) -> tuple[int, bool]:
    """How far the check of a union's case got: how deep, and whether past the type."""
    return len(complaint["loc"]), not complaint["type"].endswith("_type")


_CASE = re.compile(r"[\[(]|^(str|constrained-str|constrained-int)$")
"""How a location names a case of a union; no field is called so."""
