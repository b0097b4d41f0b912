"""The class of an error text, so that errors can be counted: "ValueError: customer a has no address" and
"ValueError: customer b has no address" are both of the class "ValueError".

Clients write these texts, so the number of classes and the length of a class have bounds.
"""

from __future__ import annotations

import re
from functools import lru_cache

CLASS_CHARS_MAX = 60
_EXCEPTION = re.compile(r"[A-Za-z_]\w{0,59}(?:\.[A-Za-z_]\w{0,59}){0,9}(?=:|\(|$)", re.ASCII)
_END = re.compile(r"[:;,\r\n]")
_DIGITS = re.compile(r"\d+")


@lru_cache(maxsize=4_096)
def classify_error(text: str) -> str:
    """Return the class of an error text; "" for a text without an error.

    The class is the name of the exception with which the text begins. For a text without one it is the text
    up to its first colon, semicolon or comma, with "#" in place of each number. It has at most
    CLASS_CHARS_MAX characters.
    """
    text = text[: 4 * CLASS_CHARS_MAX].strip()
    exception = _EXCEPTION.match(text)
    if exception is not None:
        return exception[0][:CLASS_CHARS_MAX]
    return _DIGITS.sub("#", _END.split(text, 1)[0].strip())[:CLASS_CHARS_MAX]
