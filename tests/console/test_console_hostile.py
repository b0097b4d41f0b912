"""Hostile names, keys, errors and bodies on every page stay text, and cannot change how a page reads."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.console.pages import PAGES, Console
from tests.console.populated import BIG_BODY, HOSTILE, HOSTILE_TOPIC, fill_in
from tests.scenarios.real_server import RealServer

NAME = "\u202e<script>alert(1)</script>\u0007"
QUOTED = quote(NAME, safe="")
HOSTILE_PAGES = (
    "keys?group=hostile-keys", "dead-letters/hostile-letters", "retries?group=hostile-retries",
    f"delays?topic={HOSTILE_TOPIC}", f"topics/{HOSTILE_TOPIC}?text=script", "groups/hostile-keys",
    f"topics/{QUOTED}", f"groups/{QUOTED}", f"dead-letters/{QUOTED}", f"messages/{QUOTED}",
    f"delays/{QUOTED}", f"transactions/{QUOTED}", f"search?text={QUOTED}", f"keys?group={QUOTED}",
    f"delays?topic={QUOTED}&key={QUOTED}", f"retries?group={QUOTED}", f"dead-letters/mailer?text={QUOTED}",
    f"{QUOTED}/{QUOTED}", "topics/%ED%A0%80", "keys?group=%ED%A0%80",
)  # fmt: skip
FIND_CONTROLS = r"""() => {
    const controls = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/;
    const problems = [];
    for (const element of document.querySelectorAll("#app *")) {
        const inside = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
        const attributes = [...element.attributes].filter((each) => !["href", "value"].includes(each.name));
        const texts = [...inside.map((node) => node.data), ...attributes.map((each) => each.value)];
        if (texts.some((text) => controls.test(text))) problems.push(element.outerHTML.slice(0, 200));
    }
    return problems;
}"""


def test_nothing_from_outside_is_markup_or_changes_the_direction(
    console: Console, server: RealServer
) -> None:
    console.quiet = (*console.quiet, "status of 400")
    page = console.goto("")
    page.locator(".ribbon.live").wait_for()
    for path in [*(fill_in(server, path) for path in PAGES), *HOSTILE_PAGES]:
        console.visit(path)
        page.locator("main h1").first.wait_for()
        page.locator('main [aria-busy="true"]').first.wait_for(state="detached")
        assert page.locator("#app :is(script, iframe, object, img)").count() == 0, path
        assert page.evaluate(FIND_CONTROLS) == [], path
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280, path


@pytest.mark.parametrize("path", ["keys?group=hostile-keys", "dead-letters/hostile-letters"])
def test_a_dialog_shows_hostile_samples_as_text(console: Console, path: str) -> None:
    page = console.goto(path)
    page.locator("main .actions button").first.click()
    page.locator("dialog[open] .sample", has_text="<script>").wait_for()
    assert page.evaluate(FIND_CONTROLS) == []


def test_the_whole_of_a_large_body_is_not_shown(console: Console, server: RealServer) -> None:
    (row,) = [row for row in server.messages(HOSTILE_TOPIC) if row["key"] == "big"]
    page = console.goto(f"messages/{row['id']}")
    body = page.locator("pre.body").inner_text()
    assert body.endswith("…")
    assert body.rstrip("…\n") == BIG_BODY[:65_536]


def test_what_is_no_text_cannot_be_sent(console: Console) -> None:
    console.quiet = (*console.quiet, "status of 400")
    page = console.goto("topics/mail")
    console.press("Send…")
    page.get_by_label("body", exact=True).evaluate(
        r"field => { field.value = '\ud800'; field.dispatchEvent(new Event('input', { bubbles: true })); }"
    )
    console.page.locator("dialog[open] button[type=submit]").click()
    page.locator("dialog[open] .problem", has_text="surrogate").wait_for()


def test_a_hostile_body_arrives_as_it_was_typed(console: Console, server: RealServer) -> None:
    text = HOSTILE.replace("\x00", "")
    page = console.goto("topics/mail")
    console.press("Send…")
    page.get_by_label("body", exact=True).fill(text)
    console.page.locator("dialog[open] button[type=submit]").click()
    console.outcome_of_change()
    assert text in server.bodies("mail")
