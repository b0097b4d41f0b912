"""ExpressionError: what is wrong with a filter expression, and where."""

from __future__ import annotations

EXPRESSION_BYTES_MAX = 4096


class ExpressionError(ValueError):
    """`at`: the character, counted from 1, where what is wrong starts."""

    def __init__(self, text: str, at: int) -> None:
        super().__init__(f"at character {at}: {text}")
        self.at = at


def check_size(text: str) -> None:
    """Raises ExpressionError when an expression is longer than any that is meant."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > EXPRESSION_BYTES_MAX:
        raise ExpressionError(f"it has {size} bytes; allowed: at most {EXPRESSION_BYTES_MAX}", 1)
