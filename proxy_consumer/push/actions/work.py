"""What the paths of one message may look through and bring to light, all of them together. Pure.

A path is cheap; a hundred of them into a body of megabytes, each bringing all of it, are not.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proxy_consumer.order_keys.canonical import TooMuchWork

VALUES_MAX = 32_768  # looked through by paths that are not plain
RESULT_BYTES_MAX = 8 << 20  # found by all paths, beside twice the body
_SCALAR_BYTES = 8
_ENCODER = msgspec.json.Encoder(decimal_format="number")


class Work:
    """What is left for one message."""

    __slots__ = ("_bytes_left", "_bytes_max", "_values_left")

    def __init__(self, body_bytes: int = 0) -> None:
        self._values_left = VALUES_MAX
        self._bytes_left = self._bytes_max = RESULT_BYTES_MAX + 2 * body_bytes

    def look(self, values: int) -> None:
        """So many values are looked through. Raises TooMuchWork."""
        self._values_left -= values
        if self._values_left < 0:
            raise TooMuchWork(f"all paths together look through more than {VALUES_MAX} values")

    def found(self, value: Any) -> None:
        """A path led to this. Raises TooMuchWork."""
        self.made(_size(value))

    def made(self, size: int) -> None:
        """So many bytes go into what leaves. Raises TooMuchWork."""
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise TooMuchWork(f"all paths together find more than {self._bytes_max} bytes")


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict | list):
        return len(_ENCODER.encode(value))
    return _SCALAR_BYTES
