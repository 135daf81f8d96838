"""The page at / in a real headless Chromium; its server has tiny weights, a draft that is often right, and a key.

Needs Chromium (Debian: apt install chromium) and playwright, which drives it and downloads no browser of its own.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.api_server import KEY, MODEL, Api, serve

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to open the page in")

PROMPT = "a b a b a b <b>&amp;</b> a b a b"
MAX_TOKENS = 60
HEADERS = {"Authorization": f"Bearer {KEY}"}
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with serve(tmp_path_factory.mktemp("page"), with_draft=True) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])  # in a profile of its own
        yield running
        running.close()


@contextmanager
def opened(browser: Any, api: Api, *, key: str | None = KEY, **options: Any) -> Iterator[Any]:
    """A fresh page; what it logs as an error fails the test, a breach of its own security policy among them."""
    context = browser.new_context(**options)
    if key is not None:
        context.add_init_script(f"sessionStorage.setItem('paceline.key', '{key}')")
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    page.set_default_timeout(30_000)
    page.goto(api.url + "/")
    yield page
    context.close()
    assert not [line for line in problems if "status of 40" not in line], problems  # refusals are shown, not faults


def wait_ready(page: Any) -> None:
    page.wait_for_selector("#state[data-state=ready]")


def wait_ended(page: Any) -> None:
    page.wait_for_selector("#run:not([disabled])")


def origins(page: Any, lane: int) -> list[str]:
    """By token, of the first or second lane."""
    classes = page.locator(".lane").nth(lane).locator(".token").evaluate_all("all => all.map(t => t.className)")
    return [name.removeprefix("token ") for name in classes]


def text(page: Any, lane: int) -> str:
    return str(page.locator(".lane").nth(lane).locator(".text").text_content())


def test_two_answers_race_with_their_tokens_marked(browser: Any, api: Api, tmp_path: Path) -> None:
    with opened(browser, api, key=None, viewport={"width": 1200, "height": 900}) as page:
        page.fill("#key", "not-a-key-of-anybody")
        page.click("#key-form button[type=submit]")
        page.wait_for_selector("#key-error:has-text('not known')")
        page.fill("#key", KEY)
        page.press("#key", "Enter")
        wait_ready(page)
        assert page.inner_text("#model") == MODEL
        page.fill("#prompt", PROMPT)
        page.fill("#max-tokens", str(MAX_TOKENS))
        page.click("#run")
        wait_ended(page)

        asked = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "temperature": 0}
        answer = httpx.post(
            f"{api.url}/v1/chat/completions", json={**asked, "max_tokens": MAX_TOKENS}, headers=HEADERS, timeout=60
        ).json()
        expected = answer["choices"][0]["message"]["content"]
        assert text(page, 0) == text(page, 1) == expected
        assert "Same text: yes." in page.inner_text("#verdict")
        off, on = origins(page, 0), origins(page, 1)
        assert set(off) == {"plain"}
        assert len(on) == len(off) == answer["usage"]["completion_tokens"]
        assert on[0] == "plain"
        assert {"accepted", "recovered", "bonus"} <= set(on)
        passes = page.locator(".lane").nth(1).locator(".pass").count()
        assert 1 < passes < len(on)
        assert page.locator(".lane").nth(1).locator("[data-figure=per-pass]").inner_text() == f"{len(on) / passes:.2f}"
        assert len(looks(page)) == 4  # marked by more than colour

        assert re.fullmatch(r"\d+(\.\d)?", page.inner_text("#throughput"))
        page.wait_for_selector("#acceptance-chart .bar >> nth=2")
        page.screenshot(path=tmp_path / "page.png", full_page=True)
        assert (tmp_path / "page.png").stat().st_size > 20_000


def looks(page: Any) -> set[str]:
    """The lines under the marks of the legend."""
    line = "t => getComputedStyle(t).textDecorationStyle + getComputedStyle(t).textDecorationLine"
    return {page.locator(f".legend .{name}").evaluate(line) for name in ("accepted", "recovered", "bonus", "plain")}


def test_in_turns_and_one_alone(browser: Any, api: Api) -> None:
    with opened(browser, api) as page:
        wait_ready(page)
        page.fill("#prompt", PROMPT)
        page.fill("#max-tokens", "12")
        page.check("[name=mode][value=turns]", force=True)
        page.click("#run")
        page.wait_for_selector(".lane:nth-child(2) .ended:has-text('after')")
        wait_ended(page)
        assert page.inner_text("#verdict").startswith("In turns: ")
        page.check("[name=mode][value=on]", force=True)
        page.fill("#temperature", "0.9")
        page.click("#run")
        wait_ended(page)
        assert page.locator(".lane").count() == 1
        assert len(origins(page, 0)) == 12
        page.fill("#temperature", "7")  # refused by the browser: nothing is sent
        page.click("#run")
        assert page.locator("#temperature:invalid").count() == 1
        page.fill("#temperature", "0")
        page.fill("#max-tokens", "100000")
        page.click("#run")
        page.wait_for_selector(".lane .error:has-text('max_tokens')")  # the server's own words
        wait_ended(page)


def test_keyboard_alone(browser: Any, api: Api) -> None:
    with opened(browser, api) as page:
        wait_ready(page)
        reached = []
        for _ in range(14):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("() => document.activeElement.id || document.activeElement.tagName"))
        wanted = ["theme", "prompt", "SUMMARY", "INPUT", "max-tokens", "temperature", "run"]
        assert [name for name in reached if name in wanted] == wanted
        style = "() => getComputedStyle(document.querySelector('#prompt')).outlineStyle"
        page.focus("#prompt")
        assert page.evaluate(style) == "solid"
        page.keyboard.press("Control+A")
        page.keyboard.type("abcabcabc")
        page.fill("#max-tokens", "700")
        slow = {"offline": False, "latency": 0, "downloadThroughput": 20_000, "uploadThroughput": -1}  # bytes a second
        page.context.new_cdp_session(page).send("Network.emulateNetworkConditions", slow)  # else it ends before Escape
        page.press("#max-tokens", "Control+Enter")
        page.wait_for_selector(".lane:nth-child(2) .pass >> nth=3", state="attached")
        page.keyboard.press("Escape")
        wait_ended(page)
        assert page.inner_text("#verdict") == "Stopped."
        assert page.locator(".ended:has-text('stopped')").count() == 2
        wait_idle(api)


def wait_idle(api: Api) -> None:
    """p43: nothing runs on behalf of a page that has stopped."""
    for _ in range(100):
        requests = httpx.get(f"{api.url}/v1/paceline/status", headers=HEADERS).json()["requests"]
        if requests["running"] == requests["waiting"] == 0:
            return
        time.sleep(0.1)
    raise AssertionError(requests)


def test_nothing_is_asked_while_nobody_looks(browser: Any, api: Api) -> None:
    with opened(browser, api) as page:
        wait_ready(page)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        look = "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true}); "
        look += "document.dispatchEvent(new Event('visibilitychange')); }"
        page.evaluate(look, True)
        page.wait_for_timeout(300)  # one that was under way
        asked.clear()
        page.wait_for_timeout(1500)
        assert asked == []
        with page.expect_response("**/v1/paceline/status"):
            page.evaluate(look, False)


def test_dark_follows_the_system_until_the_button_is_pressed(browser: Any, api: Api) -> None:
    with opened(browser, api, color_scheme="dark") as page:
        wait_ready(page)
        brightness = "() => Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"
        assert page.evaluate(brightness) < 40
        page.click("#theme")
        assert page.evaluate(brightness) > 200
        page.reload()
        assert page.evaluate(brightness) > 200
        page.click("#theme")
        page.emulate_media(color_scheme="light")
        page.wait_for_selector("html[data-theme=light]")  # browsers tell of it when they get round to it
        assert page.evaluate(brightness) > 200


@pytest.mark.parametrize("width", [320, 699])
def test_narrow_screens_have_one_column_and_no_sideways_scrolling(browser: Any, api: Api, width: int) -> None:
    with opened(browser, api, viewport={"width": width, "height": 800}) as page:
        wait_ready(page)
        page.fill("#prompt", "x" * 300)
        page.fill("#max-tokens", "8")
        page.click("#run")
        wait_ended(page)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        first, second = (page.locator(".lane").nth(place).bounding_box() for place in (0, 1))
        assert second["y"] >= first["y"] + first["height"]
        assert page.locator("#answers").evaluate("e => e.scrollWidth <= e.clientWidth")
