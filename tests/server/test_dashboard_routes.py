"""The dashboard's files and feeds over HTTP."""

import gzip
import http.client
import json
import re
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.server.dashboard import assets as asset_files
from lightspec_lightllm.server.dashboard import dashboard_router
from lightspec_lightllm.server.telemetry import Telemetry
from tests.server.simulated_server import DashboardServer, SimulatedLoad, make_telemetry, serving

PAGE = Path(asset_files.__file__).parent / "page"


@pytest.fixture(scope="module")
def telemetry() -> Telemetry:
    return make_telemetry()


@pytest.fixture(scope="module")
def server(telemetry: Telemetry) -> Iterator[DashboardServer]:
    with serving(telemetry) as running:
        yield running


def get(server: DashboardServer, path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_the_page_asks_nothing_but_its_own_server(server: DashboardServer) -> None:
    response, body = get(server, "/lightspec/")
    assert response.status == 200
    assert response.headers["Content-Security-Policy"].startswith("default-src 'self'")
    assert b"<title>lightspec</title>" in body
    for path in PAGE.iterdir():
        # An SVG's namespace is a name, not an address.
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(https?:)?//[a-z0-9-]+\.[a-z]", text), path.name


def test_every_file_that_the_page_names_is_served(server: DashboardServer) -> None:
    named = set(re.findall(r'(?:src|href)="assets/([^"]+)"', (PAGE / "index.html").read_text(encoding="utf-8")))
    for path in PAGE.glob("*.js"):
        named |= set(re.findall(r'from "\./([^"]+)"', path.read_text(encoding="utf-8")))
    assert {"plotly.min.js", "dashboard.css", "main.js", "feed.js"} <= named
    assert named == {path.name for path in PAGE.iterdir()} - {"index.html"} | {"plotly.min.js"}
    for name in named:
        response, body = get(server, f"/lightspec/assets/{name}")
        assert response.status == 200
        assert len(body) > 100


def test_a_file_is_compressed_for_those_who_take_it_and_not_sent_twice(server: DashboardServer) -> None:
    plain, body = get(server, "/lightspec/assets/main.js")
    packed, small = get(server, "/lightspec/assets/main.js", Accept_Encoding="gzip")
    assert plain.headers["Content-Encoding"] is None
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(small) == body
    again, nothing = get(server, "/lightspec/assets/main.js", If_None_Match=plain.headers["ETag"])
    assert (again.status, nothing) == (304, b"")


@pytest.mark.parametrize("name", ["nothing.js", "index.html", "..%2f__init__.py", "%2e%2e/assets.py"])
def test_no_other_file_is_served(server: DashboardServer, name: str) -> None:
    assert get(server, f"/lightspec/assets/{name}")[0].status == 404


def test_the_charts_come_from_the_installed_package_and_not_from_this_one(server: DashboardServer) -> None:
    _, body = get(server, "/lightspec/assets/plotly.min.js")
    assert b"plotly.js v" in body[:200]
    assert not list(PAGE.glob("plotly*"))


def test_without_plotly_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, telemetry: Telemetry) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(asset_files, "distribution", missing)
    with pytest.raises(ConfigError, match=r"pip install 'lightspec_lightllm\[serve\]'"):
        dashboard_router(telemetry)


def test_events_follow_the_history_without_a_gap(server: DashboardServer, telemetry: Telemetry) -> None:
    load = SimulatedLoad(telemetry)
    load.start()
    time.sleep(1.6)  # a second is told of once it is over
    _, body = get(server, "/lightspec/history")
    history = json.loads(body)
    last = history["buckets"][-1]["t"]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", "/lightspec/events", headers={"Last-Event-ID": str(last)})
    response = connection.getresponse()
    assert response.headers["Content-Type"].startswith("text/event-stream")
    names: list[str] = []
    ids: list[int] = []
    while len(ids) < 2:
        line = response.readline().decode().strip()
        if line.startswith("event: "):
            names.append(line.removeprefix("event: "))
        elif line.startswith("id: "):
            ids.append(int(line.removeprefix("id: ")))
    connection.close()
    load.stop()
    assert names[:3] == ["hello", "bucket", "bucket"]
    assert ids == [last + 1, last + 2]
    assert sum(bucket.get("rounds", 0) for bucket in history["buckets"]) > 0


def test_what_is_asked_after_must_be_a_second(server: DashboardServer) -> None:
    assert get(server, "/lightspec/events?after=yesterday")[0].status == 422
