"""Files that the page is made of, from this package and from plotly's; served from memory."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from fastapi import Request, Response

from lightspec_lightllm.errors import ConfigError

FOLDER = Path(__file__).parent / "page"

MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Asset:
    """One file.

    Attributes:
        path: where it is.
        seconds: how long a browser need not ask again; afterwards, and with 0 every time, it asks by `etag`.
    """

    path: Path
    seconds: int = 0

    @cached_property
    def body(self) -> bytes:
        """As it is on disk."""
        return self.path.read_bytes()

    @cached_property
    def compressed(self) -> bytes:
        """The same, gzipped."""
        return gzip.compress(self.body, 6, mtime=0)

    @cached_property
    def etag(self) -> str:
        """Changes with the content."""
        return f'"{hashlib.sha256(self.body).hexdigest()[:20]}"'

    def response(self, request: Request) -> Response:
        """The file, compressed where the client takes that, or 304 where it has it already."""
        headers = {
            "ETag": self.etag,
            "Cache-Control": f"max-age={self.seconds}" if self.seconds else "no-cache",
            "Vary": "Accept-Encoding",
            "X-Content-Type-Options": "nosniff",
        }
        if request.headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=headers)
        body = self.body
        if "gzip" in request.headers.get("accept-encoding", ""):
            body = self.compressed
            headers["Content-Encoding"] = "gzip"
        return Response(body, headers=headers, media_type=MEDIA_TYPES[self.path.suffix])


def page_assets() -> dict[str, Asset]:
    """Every file of the page by name, plotly's bundle among them.

    Raises:
        ConfigError: plotly is not installed.
    """
    files = {path.name: Asset(path) for path in FOLDER.iterdir() if path.suffix in MEDIA_TYPES}
    return {**files, "plotly.min.js": Asset(_plotly_bundle(), seconds=86400)}


def _plotly_bundle() -> Path:
    """Found without importing the package, which the server itself does not use."""
    try:
        path = Path(str(distribution("plotly").locate_file("plotly/package_data/plotly.min.js")))
    except PackageNotFoundError:
        path = None
    if path is None or not path.is_file():
        raise ConfigError(
            "dashboard: expected the package plotly, whose charts the page draws with, and did not find its bundle; "
            "pip install 'lightspec_lightllm[serve]'"
        )
    return path
