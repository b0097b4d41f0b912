"""A console in a browser, as tests use it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.console.populated import HOSTILE_TOPIC
from tests.console.shown_commands import check_command

PATIENCE_MS = 60_000
OPERATION_MS = 240_000  # of 10,000 items, on a busy machine
PAGES = {  # by path: what a page of a populated server shows, as a regular expression
    "": "attention|All well",
    "topics": "orders",
    "topics/orders": "Topic orders",
    "groups": "billing",
    "groups/billing": "customer|keys fail|billing on orders",
    "keys": "ValueError",
    "keys?group=billing": "ValueError",
    "dead-letters": "mailer",
    "dead-letters/mailer": "KeyError",
    "delays": "60 messages|mail",
    "delays?topic=mail": "late-0|wrong price",
    "delays/{delay}": "late-|wrong price",
    "messages/{message}": "mailer",
    "retries": "Retries",
    "transactions": "Open transactions",
    "transactions/{transaction}": "prepared",
    "system": "System",
    "changes": "Changes",
    "access": "Everybody who reaches the ports",
    "search?text=bill": "billing",
    f"topics/{HOSTILE_TOPIC}": "script",
}
COMMON_PAGES = (
    "",
    "groups/billing",
    "keys",
    "dead-letters/mailer",
    "delays?topic=mail",
    "messages/{message}",
    "system",
)
QUIET = ("status of 404", "status of 503")  # of requests whose errors the page shows


class Console:
    """A page of a browser at the console of one server.

    `complaints`: errors and violated policies that the browser has logged.
    """

    def __init__(self, page: Any, port: int) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.quiet = QUIET
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
        if message.type == "error" and not any(text in message.text for text in self.quiet):
            self.complaints.append(message.text)

    def load(self, path: str) -> None:
        """Open a page and wait for nothing that its modules do."""
        self.page.goto(f"{self._root}/console/{path}")

    def goto(self, path: str) -> Any:
        """Open a page by its path below /console/ and wait for its title and its data."""
        self.load(path)
        self.page.locator("main h1").first.wait_for()
        self.page.locator('main [aria-busy="true"]').first.wait_for(state="detached")
        return self.page

    def visit(self, path: str) -> None:
        """Go to a page as a link does, without loading the console again."""
        self.page.evaluate(
            "path => { history.pushState(null, '', path); dispatchEvent(new PopStateEvent('popstate')); }",
            f"/console/{path}",
        )

    def press(self, name: str) -> None:
        """Click the first button whose name begins with this text."""
        self.page.get_by_role("button", name=name).first.click()

    def confirm(self, name: str) -> None:
        """Click the button in the open dialog, once it shows what will happen, and a valid command."""
        dialog = self.page.locator("dialog[open]")
        button = dialog.locator("button[type=submit]:enabled", has_text=name)
        button.wait_for()
        check_command(dialog.locator(".command code").inner_text())
        button.click()

    def outcome(self) -> str:
        """Return the sentence in the open dialog about what was done."""
        return self._await_effect("one", OPERATION_MS)

    def outcome_of_change(self) -> str:
        """Return the sentence in the open dialog about a single change."""
        return self._await_effect("✓")

    def _await_effect(self, text: str, timeout_ms: int = PATIENCE_MS) -> str:
        """Return the main sentence of the open dialog once it has this text."""
        dialog = self.page.locator("dialog[open]")
        effect = dialog.locator(".effect", has_text=text)
        try:
            effect.wait_for(timeout=timeout_ms)
        except Exception as error:  # without playwright this module is imported, too
            raise AssertionError(f"the dialog says: {dialog.all_inner_texts()}") from error
        return str(effect.inner_text())

    def close_dialog(self) -> None:
        self.page.locator("dialog[open]").get_by_role("button", name="Close").click()
        self.page.locator("dialog[open]").wait_for(state="detached")
