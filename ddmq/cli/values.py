"""Values on the command line: what is wrong with one is said with the value and what is allowed."""

from __future__ import annotations

import math
from typing import Any

import click


class Name(click.ParamType[str]):
    """A topic, a group, a key: any text but none, as an unset variable of a shell leaves it."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:
            self.fail("'' is empty; allowed: 1 character or more", param, ctx)
        return str(value)


class Whole(click.IntRange):
    """A whole number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number in the range {self._describe_range()}", param, ctx)
        return super().convert(value, param, ctx)


class Number(click.FloatRange):
    """A number within bounds, which NaN is in none of."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            known = not math.isnan(float(value))
        except ValueError:
            known = False
        if not known:
            self.fail(f"{value!r} is not a number in the range {self._describe_range()}", param, ctx)
        return super().convert(value, param, ctx)


NAME = Name()
