"""Options that several commands share are one decorator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def combine_options(*these: Callable[[F], F]) -> Callable[[F], F]:
    """Several decorators of click as one, whose help stands in this order."""

    def add(command: F) -> F:
        for each in reversed(these):
            command = each(command)
        return command

    return add
