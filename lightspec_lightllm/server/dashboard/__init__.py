"""The dashboard: one page, its assets and the two feeds that it reads."""

from lightspec_lightllm.server.dashboard.routes import dashboard_router

__all__ = ["dashboard_router"]
