"""Options that several commands share are one decorator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def combine_options(*these: Callable[[F], F]) -> Callable[[F], F]:
    """Return one decorator that applies several click options; the help shows the options in this order."""

    def add(command: F) -> F:
        for option in reversed(these):
            command = option(command)
        return command

    return add
