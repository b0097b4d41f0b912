"""Text of others as text: nothing in it is left that a terminal, a log line or a reader's eye acts on.

Keys, tags, properties, client ids and error texts come from whoever sends them. `plain` is used wherever
such a text becomes part of a line for people: tables, facts, hints and errors of the command line, log
lines. What it escapes: control characters (ESC, newline, C1 …), line and paragraph separators, characters
that turn the direction of writing or are not seen at all, and halves of surrogate pairs. Text of any
language stays as it is, with the joiners that some of them need.
"""

from __future__ import annotations

import base64
import re

_ACTS = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_NOT_ASCII = re.compile("[\x00-\x1f\x7f-\U0010ffff]")
_NAMED = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def plain(text: str) -> str:
    r"""Return the text on one line with control characters escaped: ESC becomes `\x1b`, U+202E `\u202e`.

    Text without such characters is returned unchanged.
    """
    return text if text.isascii() and text.isprintable() else _ACTS.sub(_escape_match, text)


def json_plain(text: str, *, ascii_only: bool = False) -> str:
    r"""Return a JSON document with control characters escaped as `\uXXXX`. Its meaning does not change.

    `ascii_only`: escape all other non-ASCII characters as well.
    """
    if text.isascii() and text.isprintable():
        return text
    return (_NOT_ASCII if ascii_only else _ACTS).sub(_json_escaped, text)


def body_fields(body: bytes) -> dict[str, str]:
    """Return a complete message body as a JSON field: `body`, or `body_base64` if it is not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def _escape_match(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    short = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return _NAMED.get(character, short)


def _json_escaped(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
