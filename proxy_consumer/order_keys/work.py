"""How much work one body may cause. A hostile body must not hold up the other clients.

Values are counted from the bytes, before anything is decoded: commas and opening brackets, also those in
strings, so never too few.
"""

from __future__ import annotations

VALUES_MAX = 4096  # that a path goes through, to the power of `..`; and again, that a key's text is made of


class TooMuchWork(ValueError):
    """More values than one message may have looked through."""


def check_work(data: bytes, deep: int = 1) -> None:
    """`deep`: how often everything is gone through. Raises TooMuchWork."""
    values = 1 + data.count(b",") + data.count(b"[") + data.count(b"{")
    if values**deep > VALUES_MAX:
        raise TooMuchWork(f"about {values} values, {deep} times `..`; allowed: {VALUES_MAX} in all")


class Allowance:
    """What is left while something is made whose size does not show in the bytes."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = VALUES_MAX

    def take(self, values: int) -> None:
        """Raises TooMuchWork."""
        self._left -= values
        if self._left < 0:
            raise TooMuchWork(f"the key is made of more than {VALUES_MAX} values")
