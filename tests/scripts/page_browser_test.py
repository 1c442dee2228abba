# SPDX-License-Identifier: MIT
"""`report.html` in a real browser, as a reader uses it: by mouse, by keyboard, on a telephone."""

import base64
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from numpy.typing import NDArray
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from attnplot.report import write_report
from attnplot.table import load
from attnplot.tables import analyse
from synthetic import Run

PATIENCE = 20  # seconds; the machine may be busy
HOSTILE = '"><script>window.pwned = 1</script><img src=x onerror="window.pwned = 1">' + "x" * 90
HOSTILE_NAME = "".join(HOSTILE.split())[:100]  # as the reader takes it: no blanks, not longer
# Every text with its own background: the least contrast, by WCAG's formula.
LEAST_CONTRAST = """
const channels = (text) => text.match(/[\\d.]+/g).map(Number);
const luminance = (c) => c.slice(0, 3)
  .map((v) => v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (e) => {
  for (; e; e = e.parentElement) {
    const c = channels(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] === 1) return c;
  }
};
let least = [99, ""], seen = 0;
for (const e of document.body.querySelectorAll("*")) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  if (!own || e.closest("svg") || !e.checkVisibility()) continue;
  const [a, b] = [channels(getComputedStyle(e).color), ground(e)].map(luminance);
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < least[0]) least = [contrast, e.outerHTML.slice(0, 80)];
  seen++;
}
return [...least, seen];
"""


class Browser:
    """One headless Chromium, and what the tests ask of it again and again."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def cdp(self, command: str, **arguments: object) -> Any:
        """A command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(command, dict(arguments))

    def run(self, script: str, *arguments: object) -> Any:
        """What a function body returns."""
        return self.driver.execute_script(script, *arguments)

    def open(self, folder: Path, width: int = 1200, **media: str) -> None:
        """Opens the page of a run in a viewport of the given width."""
        mobile = width < 600
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": mobile}
        self.cdp("Emulation.setDeviceMetricsOverride", **size)
        self.media(**media)
        self.log("browser")
        self.log("performance")
        self.driver.get((folder / "report.html").as_uri())

    def media(self, scheme: str = "light", kind: str = "screen") -> None:
        """Light or dark, screen or paper."""
        # Without motion a click lands where the element stands, not where it glides to.
        wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wanted.items()]
        self.cdp("Emulation.setEmulatedMedia", media=kind, features=features)

    def find(self, selector: str) -> WebElement:
        """The first element."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def press(self, key: str) -> None:
        """A key, wherever the focus is."""
        webdriver.ActionChains(self.driver).send_keys(key).perform()

    def wait(self, script: str) -> None:
        """Until the script gives something true."""
        WebDriverWait(self.driver, PATIENCE).until(lambda _: self.run(script), script)

    def cells(self, column: str) -> list[str]:
        """The column of every row that is shown: its number if it has one, else its text."""
        found: list[str] = self.run(
            """
            const table = document.getElementById("points");
            const heads = [...table.tHead.rows[0].cells].map((c) => c.textContent);
            const index = heads.indexOf(arguments[0]);
            return [...table.tBodies[0].rows].filter((row) => row.checkVisibility())
              .map((row) => row.cells[index])
              .map((cell) => cell.dataset.v ?? (cell.firstElementChild ?? cell).textContent);
            """,
            column,
        )
        return found

    def head(self, column: str) -> WebElement:
        """The button in a column's head."""
        return self.driver.find_element(By.XPATH, f'//*[@id="points"]//th/button[.="{column}"]')

    def count(self) -> str:
        """The sentence that is announced."""
        return self.find("#count").text

    def picture(self) -> NDArray[np.float64]:
        """A screenshot, [height, width, channel], 0 … 1."""
        data = base64.b64decode(self.cdp("Page.captureScreenshot", format="png")["data"])
        return np.asarray(matplotlib.image.imread(io.BytesIO(data)), dtype=float)[..., :3]

    def complaints(self) -> list[str]:
        """What the console has said since the page was opened."""
        return [str(entry["message"]) for entry in self.log("browser")]

    def log(self, kind: str) -> list[dict[str, Any]]:
        """What was logged since the last call."""
        entries: list[dict[str, Any]] = self.driver.get_log(kind)  # type: ignore[no-untyped-call]
        return entries


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    missing = [name for name, path in programs.items() if path is None]
    if missing:
        pytest.fail(
            f"no {' and no '.join(missing)} here: 'scripts/setup.sh --dev' installs them",
            pytrace=False,
        )
    options = Options()
    options.binary_location = str(programs["chromium"])
    # Root, as in a container, may not use the sandbox; and nothing but our own file is opened.
    for argument in ("headless=new", "no-sandbox", "hide-scrollbars", "disable-gpu"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(programs["chromedriver"]))
    driver.set_page_load_timeout(60)
    yield Browser(driver)
    driver.quit()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = Run()
    run.curve(HOSTILE_NAME, lambda n: 1e-8 * n**2, tags=HOSTILE, repro_cmd=HOSTILE)
    run.row(HOSTILE_NAME, 128, scope="layer", status="error", status_reason=HOSTILE)
    folder = run.write(tmp_path_factory.mktemp("hostile"))
    write_report(analyse(load(folder)), ("html",))
    return folder


def ascending(values: list[str]) -> bool:
    """True where the numbers ascend and empty cells come last."""
    numbers = [float(v) for v in values if v]
    return numbers == sorted(numbers) and not any(values[len(numbers) :])


def test_it_loads_nothing_and_complains_of_nothing(browser: Browser, reported: Path) -> None:
    browser.open(reported)
    browser.wait("return document.readyState === 'complete'")
    messages = [json.loads(e["message"])["message"] for e in browser.log("performance")]
    asked = [
        m["params"]["request"]["url"]
        for m in messages
        if m["method"] == "Network.requestWillBeSent"
    ]
    assert asked, "the log of requests works"
    assert {url for url in asked if not url.startswith("data:")} == {
        (reported / "report.html").as_uri()
    }
    assert browser.complaints() == []


def test_points_are_sorted_by_their_numbers(browser: Browser, reported: Path) -> None:
    browser.open(reported)
    assert len(browser.cells("median")) == 240
    assert not ascending(browser.cells("median"))
    for column in ("median", "n", "95 % interval", "GFLOP/s"):
        before = sorted(browser.cells(column))
        browser.head(column).click()
        up = browser.cells(column)
        assert ascending(up), column
        assert browser.head(column).find_element(By.XPATH, "..").get_attribute("aria-sort") == (
            "ascending"
        )
        browser.head(column).click()
        down = [v for v in browser.cells(column) if v]
        assert ascending(down[::-1]), column
        assert not any(browser.cells(column)[len(down) :]), "rows without a number stay last"
        assert browser.count() == f"240 of 240 points; sorted by {column}, descending."
        assert sorted(browser.cells(column)) == before, "no row is lost"
    browser.head("backend").click()
    names = browser.cells("backend")
    assert names == sorted(names)
    heads = browser.driver.find_elements(By.CSS_SELECTOR, "#points thead th")
    states = [head.get_attribute("aria-sort") for head in heads]
    assert sorted(str(state) for state in states) == ["ascending", *["none"] * 9]


def test_points_are_sorted_by_keyboard(browser: Browser, reported: Path) -> None:
    browser.open(reported)
    button = browser.head("median")
    browser.run("arguments[0].focus()", button)
    browser.press(Keys.ENTER)
    assert ascending(browser.cells("median"))
    browser.press(Keys.SPACE)
    assert not ascending(browser.cells("median"))
    assert ascending([v for v in browser.cells("median") if v][::-1])
    outline = (
        button.value_of_css_property("outline-style"),
        button.value_of_css_property("outline-width"),
    )
    assert outline == ("solid", "3px"), "the focus can be seen"


def test_filters_leave_what_fits_and_say_so(browser: Browser, reported: Path) -> None:
    browser.open(reported)
    assert browser.count() == "240 of 240 points."
    Select(browser.find("#filter select[data-title=backend]")).select_by_visible_text("cpu.naive")
    assert set(browser.cells("backend")) == {"cpu.naive"}
    assert (
        browser.count() == f"{len(browser.cells('n'))} of 240 points; filters: backend cpu.naive."
    )
    Select(browser.find("#filter select[data-title=status]")).select_by_visible_text("noisy")
    assert len(browser.cells("n")) == 1
    assert "filters: backend cpu.naive; status noisy" in browser.count()
    browser.find("#filter button").click()
    browser.wait("return document.getElementById('count').textContent === '240 of 240 points.'")
    assert len(browser.cells("n")) == 240
    search = browser.find("#filter input")
    search.send_keys("CUDA toolkit")  # words of a reason
    assert set(browser.cells("backend")) == {"cuda.naive", "cuda.tiled"}
    assert browser.count() == "20 of 240 points; filters: search “cuda toolkit”."
    assert not browser.find("#nothing").is_displayed()
    search.send_keys(" absent")
    assert browser.cells("n") == []
    assert browser.count().startswith("0 of 240 points; filters: search “cuda toolkit absent”")
    assert browser.find("#nothing").is_displayed()
    assert browser.find("#count").get_attribute("aria-live") == "polite"


def test_details_by_keyboard_and_the_command_in_the_clipboard(
    browser: Browser, reported: Path
) -> None:
    browser.open(reported)
    name = browser.find("#points tbody button")
    browser.run("arguments[0].focus()", name)
    browser.press(Keys.ENTER)
    shown = browser.find("[popover]:popover-open")
    assert "attnbench run --only cpu.naive --n 128 --tag row=0" in shown.text
    for wanted in ("quartiles", "memory", "point"):
        assert wanted in shown.text
    grant = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    browser.cdp("Browser.grantPermissions", permissions=grant)
    browser.press(Keys.TAB)
    focused = browser.driver.switch_to.active_element
    assert focused.text == "Copy the command"
    browser.press(Keys.SPACE)
    browser.wait("return document.activeElement.textContent === 'Copied'")
    copied = browser.driver.execute_async_script(
        "navigator.clipboard.readText().then(arguments[0])"
    )
    assert copied == "attnbench run --only cpu.naive --n 128 --tag row=0"
    browser.press(Keys.ESCAPE)
    assert not browser.driver.find_elements(By.CSS_SELECTOR, "[popover]:popover-open")
    assert browser.driver.switch_to.active_element == name, "the focus comes back"


def test_without_a_clipboard_the_command_is_selected(browser: Browser, reported: Path) -> None:
    browser.open(reported)
    browser.run("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    browser.find("#points tbody button").click()
    browser.find("[popover]:popover-open .copy").click()
    browser.wait("return getSelection().toString().includes('--tag row=0')")


def test_the_theme_is_remembered(browser: Browser, reported: Path) -> None:
    browser.open(reported)
    light = float(browser.picture().mean())
    toggle = browser.find("#theme")
    assert toggle.get_attribute("aria-pressed") == "false"
    toggle.click()
    assert toggle.get_attribute("aria-pressed") == "true"
    dark = float(browser.picture().mean())
    assert dark < 0.35 < 0.8 < light
    browser.driver.refresh()
    assert browser.find("#theme").get_attribute("aria-pressed") == "true"
    assert float(browser.picture().mean()) < 0.35
    browser.find("#theme").click()
    assert float(browser.picture().mean()) > 0.8
    browser.run("localStorage.clear()")
    browser.open(reported, scheme="dark")
    assert browser.find("#theme").get_attribute("aria-pressed") == "true"
    assert float(browser.picture().mean()) < 0.35, "the system's choice"
    browser.find("#theme").click()
    assert float(browser.picture().mean()) > 0.8, "the reader's choice is stronger"
    browser.run("localStorage.clear()")


def test_a_blocked_storage_breaks_nothing(browser: Browser, reported: Path) -> None:
    script = browser.cdp(
        "Page.addScriptToEvaluateOnNewDocument",
        source="Object.defineProperty(window, 'localStorage', "
        "{ get() { throw new DOMException('blocked', 'SecurityError'); } })",
    )
    try:
        browser.open(reported)
        assert browser.run("try { localStorage; } catch (e) { return e.message; }") == "blocked"
        browser.find("#theme").click()
        assert browser.find("#theme").get_attribute("aria-pressed") == "true"
        browser.head("median").click()
        assert ascending(browser.cells("median"))
        assert browser.complaints() == []
    finally:
        browser.cdp("Page.removeScriptToEvaluateOnNewDocument", **script)


@pytest.mark.parametrize("width", [320, 400, 1600])
def test_the_page_never_scrolls_sideways(
    browser: Browser, reported: Path, hostile: Path, width: int
) -> None:
    for folder in (reported, hostile):
        browser.open(folder, width)
        assert browser.run("return innerWidth") == width, "a wide element widens a phone's viewport"
        assert browser.run("return document.documentElement.scrollWidth") <= width
        browser.find("#points tbody button").click()
        box = browser.find("[popover]:popover-open").rect
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(browser: Browser, reported: Path, scheme: str) -> None:
    browser.open(reported, scheme=scheme)
    browser.find("#points tbody button").click()
    least, where, seen = browser.run(LEAST_CONTRAST)
    assert seen > 1000
    assert least >= 4.5, where


def test_grey_says_as_much(browser: Browser, reported: Path) -> None:
    browser.open(reported)
    browser.run("document.documentElement.style.filter = 'grayscale(1)'")
    # A style set by the page's own policy-free route; the picture proves that it holds.
    picture = browser.picture()
    assert float(np.ptp(picture, axis=-1).max()) < 0.02
    assert 0.8 < float(picture.mean()) < 1
    words = browser.run(
        "return [...document.querySelectorAll('#points tbody tr')].map((row) => "
        "[row.cells[6].textContent.trim(), row.cells[3].textContent])"
    )
    assert {status for status, _ in words} == {"ok", "ok noisy", "cutoff", "unavailable"}
    assert all((median == "–") is not status.startswith("ok") for status, median in words)


def test_without_a_script_everything_is_there(browser: Browser, reported: Path) -> None:
    browser.cdp("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.driver.get((reported / "report.html").as_uri())
        assert not browser.find("#filter").is_displayed()
        assert not browser.find("#theme").is_displayed()
        assert len(browser.driver.find_elements(By.CSS_SELECTOR, "#points tbody tr")) == 240
        name = browser.find("#points tbody button")
        name.click()
        shown = browser.find("[popover]:popover-open")
        assert "attnbench run --only cpu.naive --n 128 --tag row=0" in shown.text
        assert "Copy" not in shown.text
    finally:
        browser.cdp("Emulation.setScriptExecutionDisabled", value=False)


def test_hostile_names_are_text(browser: Browser, hostile: Path) -> None:
    browser.open(hostile)
    assert browser.run("return window.pwned") is None
    assert browser.complaints() == []
    assert browser.cells("backend")[0] == HOSTILE_NAME
    texts = browser.run("return [...document.querySelectorAll('svg text')].map(t => t.textContent)")
    assert HOSTILE_NAME in texts


def test_the_policy_stops_what_escaping_would_have_missed(browser: Browser, reported: Path) -> None:
    browser.open(reported)
    browser.run(
        "document.body.insertAdjacentHTML('beforeend', arguments[0]);"
        "const s = document.createElement('script'); s.textContent = 'window.pwned = 1';"
        "document.body.append(s);",
        '<img src="data:x" onerror="window.pwned = 1"><p id="styled" style="color: red">x</p>',
    )
    browser.wait("return document.querySelector('img').complete")
    assert browser.run("return window.pwned") is None
    assert browser.find("#styled").value_of_css_property("color") != "rgba(255, 0, 0, 1)"
    assert any("Content Security Policy" in said for said in browser.complaints())


def test_on_paper_nothing_is_cut_off(browser: Browser, reported: Path) -> None:
    browser.open(reported, 760, kind="print", scheme="dark")
    for selector in ("nav", "#filter", "#theme", ".skip"):
        assert not browser.find(selector).is_displayed(), selector
    cut = browser.run(
        "return [...document.querySelectorAll('.scroll')].filter((e) => "
        "e.scrollHeight > e.clientHeight + 1 || e.scrollWidth > e.clientWidth + 1)"
        ".map((e) => e.getAttribute('aria-label'))"
    )
    assert cut == []
    assert browser.run("return getComputedStyle(document.querySelector('svg')).filter") == "none"
    colour = browser.find("h1").value_of_css_property("color")
    assert colour == "rgba(27, 31, 36, 1)", "dark text, whatever the screen's theme"


def test_the_first_tab_skips_to_the_results(browser: Browser, reported: Path) -> None:
    browser.open(reported)
    browser.press(Keys.TAB)
    skip = browser.driver.switch_to.active_element
    assert skip.text == "Skip to the results"
    assert skip.rect["x"] >= 0
    browser.press(Keys.ENTER)
    assert browser.driver.switch_to.active_element.get_attribute("id") == "content"
