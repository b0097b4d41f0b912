"""Text of a proxy as text: short, and nothing in it is left that a terminal or a log line acts on."""

from __future__ import annotations

TEXT_CHARS_MAX = 1_000
_SPACES = " \u3000"


def printable(text: str) -> str:
    r"""Convert the text into one printable line of at most TEXT_CHARS_MAX characters; ESC becomes `\x1b`.

    A printable text is returned unchanged.
    """
    if len(text) > TEXT_CHARS_MAX:
        text = text[: TEXT_CHARS_MAX - 1] + "…"
    if text.isprintable():
        return text
    escaped = "".join(sign if sign.isprintable() or sign in _SPACES else _escape(sign) for sign in text)
    return escaped if len(escaped) <= TEXT_CHARS_MAX else escaped[: TEXT_CHARS_MAX - 1] + "…"


def _escape(sign: str) -> str:
    return sign.encode("unicode_escape").decode("ascii")
