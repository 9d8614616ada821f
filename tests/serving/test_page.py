"""The page in a real Chromium; its screenshots are those of docs."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from openfate.serving import Shop

IMAGES = Path(__file__).parents[2] / "docs" / "images"


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


@pytest.fixture(scope="module")
def url():
    """A demo, quicker than that of the command: it is the page that is tested."""
    port = free_port()
    code = (
        "import openfate.serving.shop as s; s.Visitors.__init__.__defaults__ = (60.0, 2.0)\n"
        "s.Shop.__init__.__defaults__ = (0, 80)\n"
        f"import sys; sys.argv = ['openfate', 'serve', '--demo', '--port', '{port}']\n"
        "from openfate.cli import main; main()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=2).close()
                break
            except OSError:
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        assert process.wait(30) == 0


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as api:
        found = os.environ.get("OPENFATE_CHROMIUM") or shutil.which("chromium")
        if found is None and not Path(api.chromium.executable_path).exists():
            pytest.skip("no Chromium (make test-browser installs it, or set OPENFATE_CHROMIUM)")
        chromium = api.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def wait_for_labels(page, at_least):
    deadline = time.monotonic() + 90  # WHY not wait_for_function: the page allows no eval
    while int("0" + re.sub(r"\D", "", page.inner_text("#labels"))) <= at_least:
        assert time.monotonic() < deadline
        page.wait_for_timeout(200)
    page.wait_for_timeout(2500)


@pytest.mark.slow
def test_the_page_tells_the_story(url, browser):
    outside, broken = [], []
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.on("request", lambda one: None if one.url.startswith(url) else outside.append(one.url))
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.on("console", lambda m: broken.append(m.text) if m.type == "error" else None)
    page.goto(url)
    wait_for_labels(page, 300)
    assert page.locator("#map circle.new").count() > 0
    assert "campaign=campaign 1" in page.inner_text("#table")
    assert "used" in page.inner_text("#verdict")
    n_new = page.locator("#map circle.new").count()
    if os.environ.get("OPENFATE_SCREENSHOTS"):
        page.screenshot(path=IMAGES / "serving-new-features.png", full_page=True)
    # By keyboard alone: a new feature is told, and a row is tried.
    assert page.locator("#map circle[tabindex='0']").count() == 1
    page.locator("#map circle[tabindex='0']").focus()
    newest = page.inner_text("#map-hover")
    page.keyboard.press("ArrowLeft")
    assert "new," in newest and page.inner_text("#map-hover") != newest
    page.locator("#fields input").nth(0).focus()
    for text in ("cart", "phone", "it", "campaign 1", "7"):
        page.keyboard.type(text)
        page.keyboard.press("Tab")
    page.locator("#try button").focus()
    before = page.locator("#map").bounding_box()["x"]
    page.keyboard.press("Enter")
    page.wait_for_selector("#answer table tr")
    assert page.locator("#map").bounding_box()["x"] == before  # nothing jumps to another column
    used, ignored = page.locator("#answer b").all_inner_texts()
    assert used != ignored
    assert "campaign=campaign 1 (new)" in page.inner_text("#answer")
    if os.environ.get("OPENFATE_SCREENSHOTS"):
        page.locator("section", has_text="Try a row").screenshot(
            path=IMAGES / "serving-explained.png"
        )
    wait_for_labels(page, 900)
    assert page.locator("#worth-chart path").count() == 2
    assert page.locator("#map circle.new").count() > n_new  # they appeared while we watched
    if os.environ.get("OPENFATE_SCREENSHOTS"):
        page.locator("section", has_text="Is it worth it").screenshot(
            path=IMAGES / "serving-worth.png"
        )
    # Every control has a name, every picture an alternative.
    for control in page.locator("input, select, button").all():
        assert control.evaluate("e => e.labels?.length || e.textContent.trim().length") > 0
    assert page.locator("svg:not([aria-label])").count() == 0
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.close()
    assert outside == []
    assert broken == []


def test_the_shop_is_worth_watching():
    shop = Shop(seed=0, campaign_visits=50)
    visits = [shop.visit() for _ in range(600)]
    by = {}
    for row, bought in visits:
        by.setdefault(row["campaign"], []).append(bought)
    shares = {name: sum(y) / len(y) for name, y in by.items()}
    assert shares["campaign 1"] > shares["campaign 2"] + 0.3
    assert "coupon" not in visits[0][0]
    assert "coupon" in visits[-1][0]
