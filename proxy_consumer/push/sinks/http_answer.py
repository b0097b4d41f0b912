"""What the answer to a push means.

Only status 200 is an answer. Its body says with `errno` what became of the message; a body that says
nothing (blank, no JSON, no object, errno absent, null or "") means done.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

import msgspec

DONE_SLOWER, DONE_REFUSED, AGAIN_LATER = 1_000_000, 1_000_001, 1_000_002
_NUMBER = re.compile(r"[ \t\r\n]*[+-]?\d{1,18}(?:\.0*)?[ \t\r\n]*\Z")
_SILENT = (None, "")


class Meaning(Enum):
    """What to do."""

    DONE = "done"
    SLOWER = "done, and the next sends slower"
    ERROR = "not an answer: again after a growing wait"
    LATER = "again in a second, not counted"
    FAIL = "a failed job"
    GIVE_UP = "dead letter"


class HttpReading(NamedTuple):
    """`text`: why, for what is not done."""

    meaning: Meaning
    text: str = ""


DONE = HttpReading(Meaning.DONE)


def read_answer(status: int, body: bytes) -> HttpReading:
    """The meaning of a whole answer."""
    if status != 200:
        return HttpReading(Meaning.ERROR, f"status {status}; 200 is wanted")
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return DONE
    if not isinstance(content, dict) or content.get("errno") in _SILENT:
        return DONE
    return _errno(content["errno"])


def _errno(errno: object) -> HttpReading:
    if isinstance(errno, bool) or not isinstance(errno, int | float | str):
        return HttpReading(Meaning.GIVE_UP, f"errno is {errno!r:.60}, not a number")
    if isinstance(errno, str):
        if not _NUMBER.match(errno):
            return HttpReading(Meaning.GIVE_UP, f"errno is {errno!r:.60}, not a number")
        errno = float(errno) if "." in errno else int(errno)
    if errno in (0, DONE_REFUSED):
        return DONE
    if errno == DONE_SLOWER:
        return HttpReading(Meaning.SLOWER)
    if errno == AGAIN_LATER:
        return HttpReading(Meaning.LATER, f"errno {AGAIN_LATER}")
    return HttpReading(Meaning.FAIL, f"errno {errno}")
