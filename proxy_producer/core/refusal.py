"""A refusal: the wire code, a reason for counting, and a sentence for people.

The sentence starts with `FAILED:` and says what was wrong, with the value, and what is allowed. The
reason is one of a small fixed set, so that it can label a metric; it never holds a client's text.
"""

from __future__ import annotations

from typing import NamedTuple

from ddmq_client.idl.codes import FAILED_PREFIX, Code


class SendRefusal(NamedTuple):
    """Why a message was not stored (or, code 12, is not known to be)."""

    code: Code
    reason: str
    text: str


def refusal(code: Code, reason: str, what: str, allowed: str) -> SendRefusal:
    """`what` was wrong, with its value; `allowed`: what would have been right, or what to do."""
    return SendRefusal(code, reason, f"{FAILED_PREFIX} {what}; {allowed}")


def illegal(reason: str, what: str, allowed: str) -> SendRefusal:
    """Code 11: the message is wrong as it stands."""
    return refusal(Code.ILLEGAL_MESSAGE, reason, what, allowed)


def shown(text: bytes, characters_max: int = 40) -> str:
    """A client's text for a message: quoted, shortened, one line, never invalid UTF-8."""
    whole = text[: 4 * characters_max + 4].decode("utf-8", "backslashreplace")
    cut = whole[:characters_max]
    return repr(cut) if len(cut) == len(whole) else f"{cut!r}..."
