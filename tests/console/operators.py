"""How an operator uses the console: with the mouse, or with the keyboard alone."""

from __future__ import annotations

from typing import Any, Protocol

import pytest

from tests.console.pages import Console
from tests.console.shown_commands import check_command

STOPS_MAX = 400  # of the Tab key on one page


class Hands(Protocol):
    """What an operator does on a page. `actions` counts the decisions: clicks, or what Enter did for them."""

    actions: int

    def __init__(self, console: Console) -> None: ...

    def activate(self, target: Any) -> None:
        """Use a link or a button."""
        ...

    def enter(self, field: Any, text: str) -> None:
        """Replace the text of a field."""
        ...

    def select_bars(self, timeline: Any, first: int, last: int, bars: int) -> None:
        """Select the bars from `first` to `last` of a timeline that has `bars` of them."""
        ...


class MouseHands:
    """Clicks and drags."""

    def __init__(self, console: Console) -> None:
        self._page = console.page
        self.actions = 0

    def activate(self, target: Any) -> None:
        target.click()
        self.actions += 1

    def enter(self, field: Any, text: str) -> None:
        field.fill(text)

    def select_bars(self, timeline: Any, first: int, last: int, bars: int) -> None:
        timeline.scroll_into_view_if_needed()
        box = timeline.bounding_box()
        height = box["y"] + box["height"] / 2
        self._page.mouse.move(box["x"] + (first + 0.5) * box["width"] / bars, height)
        self._page.mouse.down()
        self._page.mouse.move(box["x"] + (last + 0.5) * box["width"] / bars, height, steps=4)
        self._page.mouse.up()
        self.actions += 1


class KeyboardHands:
    """Presses Tab until the target has the focus, and never touches the mouse."""

    def __init__(self, console: Console) -> None:
        self._page = console.page
        self.actions = 0

    def activate(self, target: Any) -> None:
        self._reach(target)
        self._page.keyboard.press("Enter")
        self.actions += 1

    def enter(self, field: Any, text: str) -> None:
        self._reach(field)
        self._page.keyboard.press("Control+a")
        self._page.keyboard.type(text)

    def select_bars(self, timeline: Any, first: int, last: int, bars: int) -> None:
        self._reach(timeline)
        for _ in range(first):
            self._page.keyboard.press("ArrowRight")
        for _ in range(last - first):
            self._page.keyboard.press("Shift+ArrowRight")
        self._page.keyboard.press("Enter")
        self.actions += 1

    def _reach(self, target: Any) -> None:
        target.wait_for()
        for _ in range(STOPS_MAX):
            if target.evaluate("element => element === document.activeElement"):
                return
            self._page.keyboard.press("Tab")
        raise AssertionError(f"{target} cannot be reached with the Tab key")


HANDS = (MouseHands, pytest.param(KeyboardHands, marks=pytest.mark.long))


def confirm(hands: Hands, console: Console, verb: str) -> None:
    """Agree to what the open dialog shows, once it shows it. Its command must be one that ddmq has."""
    dialog = console.page.locator("dialog[open]")
    button = dialog.locator("button[type=submit]:enabled", has_text=verb)
    button.wait_for()
    check_command(dialog.locator(".command code").inner_text())
    hands.activate(button)
