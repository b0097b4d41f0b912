"""Separates the literals of a CEL expression from its code, so that only code is counted.

In `code` each literal is replaced by its number in quotation marks, `matches('0')`, and comments are removed;
`literals` has their texts. CEL itself checks the expression, so that only valid expressions matter here.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""//[^\n]*
    |(?P<raw>[bB]?[rR][bB]?)(?:'''(.*?)'''|\"\"\"(.*?)\"\"\"|'([^'\n\r]*)'|"([^"\n\r]*)")
    |[bB]?(?:'''((?:\\.|[^\\])*?)'''|\"\"\"((?:\\.|[^\\])*?)\"\"\"
            |'((?:\\.|[^'\\\n\r])*)'|"((?:\\.|[^"\\\n\r])*)")""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {sign: sign for sign in "\\'\"`?"} | {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip


class CelSource:
    r"""One expression, split into `code` and `literals`; a literal with a numeric escape such as \x41 is
    None."""

    def __init__(self, source: str) -> None:
        self.literals: list[str | None] = []
        self.code = _TOKEN.sub(self._replace_literal, source)

    def _replace_literal(self, token: re.Match[str]) -> str:
        text = next((group for group in token.groups()[1:] if group is not None), None)
        if text is None:
            return " "  # a comment
        self.literals.append(text if token["raw"] else _unescape_text(text))
        return f"'{len(self.literals) - 1}'"

    def first_arguments(self, function: str) -> list[str | None]:
        """Return the first argument of each call of a method: its text if it is a literal, otherwise None.

        `matches` and `split` have one argument or more; a call without arguments is left out.
        """
        calls = re.findall(rf"\b{function}\s*\(\s*(?!\))(?:'([0-9]+)'\s*(?=[,)]))?", self.code)
        return [self.literals[int(index)] if index else None for index in calls]

    def count_names(self, names: str) -> int:
        """Return how often one of the names, separated by `|`, is in the code."""
        return len(re.findall(rf"\b(?:{names})\b", self.code))


def _unescape_text(text: str) -> str | None:
    if any(sign not in _ESCAPES for sign in _ESCAPE.findall(text)):
        return None
    return _ESCAPE.sub(lambda match: _ESCAPES[match[1]], text)
