"""A console in a browser, as tests use it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE_MS = 60_000
QUIET = ("status of 404", "status of 503")  # of requests whose errors the page shows


class Console:
    """A page of a browser at the console of one server.

    `complaints`: errors and violated policies that the browser has logged.
    """

    def __init__(self, page: Any, port: int) -> None:
        self.page = page
        self.complaints: list[str] = []
        self._root = f"http://127.0.0.1:{port}"
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._note_message)

    @classmethod
    @contextmanager
    def open(
        cls,
        browser: Any,
        port: int,
        *,
        width: int = 1280,
        scheme: str = "light",
        bypass_csp: bool = False,
        token: str = "",
    ) -> Iterator[Console]:
        """Open a console in a browser context of its own. `token`: with which it is logged in."""
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=bypass_csp
        )
        if token:
            context.add_init_script(f"sessionStorage.setItem('ddmq.console.token', {token!r})")
        try:
            yield cls(context.new_page(), port)
        finally:
            context.close()

    def _note_message(self, message: Any) -> None:
        if message.type == "error" and not any(text in message.text for text in QUIET):
            self.complaints.append(message.text)

    def goto(self, path: str) -> Any:
        """Open a page by its path below /console/ and wait for its title."""
        self.page.goto(f"{self._root}/console/{path}")
        self.page.locator("main h1").first.wait_for()
        self.page.locator('main [aria-busy="true"]').first.wait_for(state="detached")
        return self.page

    def press(self, name: str) -> None:
        """Click the first button whose name begins with this text."""
        self.page.get_by_role("button", name=name).first.click()

    def confirm(self, name: str) -> None:
        """Click the button in the open dialog, once what it will do is shown."""
        self.page.locator("dialog[open]").get_by_role("button", name=name).last.click()

    def outcome(self) -> str:
        """Return the sentence in the open dialog about what was done."""
        done = self.page.locator("dialog[open] .effect", has_text="one")
        done.wait_for()
        return str(done.inner_text())

    def outcome_of_change(self) -> str:
        """Return the sentence in the open dialog about a single change."""
        done = self.page.locator("dialog[open] .effect", has_text="✓")
        done.wait_for()
        return str(done.inner_text())

    def close_dialog(self) -> None:
        self.page.locator("dialog[open]").get_by_role("button", name="Close").click()
        self.page.locator("dialog[open]").wait_for(state="detached")
