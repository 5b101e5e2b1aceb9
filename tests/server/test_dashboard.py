"""The dashboard as people see it: in headless Chromium, with nothing but this server to ask."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.server.simulated_server import MAX_DRAFT_STEPS, SimulatedLoad, make_telemetry, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Route

    from lightspec_lightllm.server.telemetry import Telemetry

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

CHARTS = ("decisions", "timeline", "stages", "prediction", "positions", "calibration")
WIDTHS = {1280: 900, 390: 844}
PATIENCE_MS = 60_000


@functools.cache
def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    if chromium() is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield browser
        browser.close()


class Visit:
    """One page that is open, and what went wrong on it.

    Attributes:
        problems: errors and warnings of the console, exceptions, and requests to anywhere else (which are refused).
    """

    def __init__(self, browser: Browser, url: str, *, theme: str = "light", width: int = 1280) -> None:
        self.problems: list[str] = []
        self._origin = url.removesuffix("/lightspec/")
        context = browser.new_context(
            viewport={"width": width, "height": WIDTHS[width]}, color_scheme=cast("Any", theme)
        )
        context.route("**/*", self._only_here)
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.goto(url)

    def _heard(self, said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            self.problems.append(said.text)

    def _only_here(self, route: Route) -> None:
        if route.request.url.startswith(self._origin + "/"):
            route.continue_()
        else:
            self.problems.append(f"asked {route.request.url}")
            route.abort()

    def wait(self, condition: str) -> None:
        self.page.wait_for_function(condition)

    def show_all(self) -> None:
        """Make the window as tall as the page: charts that are out of sight are not drawn."""
        height = self.page.evaluate("document.body.scrollHeight")
        width = cast("Any", self.page.viewport_size)["width"]
        self.page.set_viewport_size({"width": width, "height": height + 400})

    def close(self) -> None:
        self.page.context.close()


@pytest.fixture(scope="module")
def telemetry() -> Telemetry:
    return make_telemetry()


@pytest.fixture(scope="module")
def loaded_url(browser: Browser, telemetry: Telemetry) -> Iterator[str]:
    """The dashboard while a load runs. Whether there is a browser is asked first."""
    load = SimulatedLoad(telemetry)
    load.start()
    with serving(telemetry) as server:
        yield server.url
    load.stop()


FILLED = """() => document.querySelectorAll('.js-plotly-plot').length === 6
  && document.getElementById('decisions').data[0].z.flat().some((share) => share > 0)
  && document.getElementById('timeline').data[4].y.some((running) => running > 0)
  && document.getElementById('stages').data.length === 5
  && document.getElementById('prediction').data[2].x.length > 0
  && document.getElementById('positions').data[0].y.some((share) => share > 0)
  && document.getElementById('calibration').data[1].x.length > 0
  && document.querySelectorAll('#plans tbody tr').length > 0"""


CONTRAST = """() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b]
    .map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sofar, c, at) => sofar + c * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll('h1, h2, p, th, td, button, label, output, b, small, .status span')) {
    if (!element.checkVisibility() || !element.innerText.trim()) continue;
    const [a, b] = [luminance(channels(getComputedStyle(element).color)), luminance(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${element.tagName} ${element.innerText.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return poor;
}"""

NAMELESS = """() => [...document.querySelectorAll('button, input')].filter((control) =>
  !control.innerText.trim() && !control.ariaLabel && !control.labels?.length).length"""


@pytest.mark.parametrize(
    ("theme", "width"),
    [
        ("light", 1280),
        ("dark", 390),
        pytest.param("light", 390, marks=pytest.mark.slow),
        pytest.param("dark", 1280, marks=pytest.mark.slow),
    ],
)
def test_charts_fill_while_a_load_runs_without_error_or_network(
    browser: Browser, loaded_url: str, theme: str, width: int, tmp_path: Path
) -> None:
    visit = Visit(browser, loaded_url, theme=theme, width=width)
    visit.show_all()
    visit.wait(FILLED)
    page = visit.page
    x, y = page.evaluate("(({ data: [map] }) => [map.x, map.y])(document.getElementById('decisions'))")
    assert x == list(range(MAX_DRAFT_STEPS + 1))
    assert (y[0], y[-1]) == (1, 1 + MAX_DRAFT_STEPS)
    visit.wait("() => document.getElementById('status').innerText === 'Live'")
    assert not page.locator("#notice").is_visible()
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for name in CHARTS:
        box = page.locator(f"#{name} .main-svg").first.bounding_box()
        assert box is not None
        assert 200 < box["width"] <= width
        assert page.locator(f"#{name}").get_attribute("aria-label")
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(NAMELESS) == 0
    folder = Path(os.environ.get("LIGHTSPEC_SCREENSHOTS", tmp_path))
    page.screenshot(path=folder / f"dashboard-{theme}-{width}.png", full_page=True)
    assert visit.problems == []
    visit.close()


def test_an_open_page_is_live_and_its_window_slider_and_theme_can_be_chosen(browser: Browser, loaded_url: str) -> None:
    visit = Visit(browser, loaded_url)
    page = visit.page
    visit.wait("() => document.querySelectorAll('#plans tbody tr').length > 0")
    newest = "document.querySelector('#plans tbody td').innerText"
    page.wait_for_function(f"(first) => {newest} !== first", arg=page.evaluate(newest))
    visit.wait("() => Number(document.getElementById('until').min) < -1")
    page.get_by_role("button", name="10 min").click()
    assert page.get_by_role("button", name="10 min").get_attribute("aria-pressed") == "true"
    assert page.get_by_role("button", name="1 min", exact=True).get_attribute("aria-pressed") == "false"
    visit.wait("() => document.getElementById('timeline').layout?.xaxis.range[0] === -600")
    page.locator("#until").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#status").inner_text() == "Live, held"
    held = page.locator("#until-text").inner_text()
    assert "ago" in held
    page.get_by_role("button", name="Back to now").click()
    assert page.locator("#until-text").inner_text() == "now"
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert visit.problems == []
    visit.close()


def test_an_idle_server_shows_what_to_send_until_something_runs(browser: Browser) -> None:
    telemetry = make_telemetry()
    with serving(telemetry) as server:
        visit = Visit(browser, server.url)
        visit.wait("() => !document.getElementById('empty').hidden")
        command = visit.page.locator("#curl").inner_text()
        assert command.startswith(f"curl http://127.0.0.1:{server.port}/v1/completions ")
        load = SimulatedLoad(telemetry)
        load.start()
        visit.wait("() => document.getElementById('empty').hidden")
        load.stop()
        assert visit.problems == []
        visit.close()


def test_a_lost_server_is_told_and_one_that_comes_back_is_followed(browser: Browser) -> None:
    telemetry = make_telemetry()
    with serving(telemetry) as server:
        port = server.port
        visit = Visit(browser, server.url)
        visit.wait("() => document.getElementById('status').dataset.state === 'live'")
        telemetry.set_notice("The engine is being restarted.")
        visit.wait("() => document.getElementById('notice').innerText.includes('being restarted')")
        telemetry.set_notice(None)
        visit.wait("() => document.getElementById('notice').hidden")
        telemetry.close()
    visit.wait("() => document.getElementById('status').dataset.state === 'lost'")
    assert "does not answer" in visit.page.locator("#notice").inner_text()
    again = make_telemetry()
    load = SimulatedLoad(again)
    load.start()
    with serving(again, port):
        visit.wait("() => document.getElementById('status').dataset.state === 'live'")
        visit.wait("() => document.querySelectorAll('#plans tbody tr td').length > 1")
        assert not visit.page.locator("#notice").is_visible()
        # What a browser writes of requests that were refused is not the page's to prevent; it must be all there is.
        assert all("ERR_CONNECTION" in problem or "ERR_INCOMPLETE" in problem for problem in visit.problems)
        visit.close()
        again.close()
    load.stop()
