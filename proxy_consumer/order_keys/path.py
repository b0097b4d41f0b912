"""The JSONPath dialect of order keys, parsed into steps; errors state their position.

`$` optional; `.a` or `/a`, `['a-b']`, `['a','b']`, `[-1]`, `[0,1]`, `[0:2]`, `[*]` and `.*`, `..a`,
`[?(@.c>1)]`, `[c=1]`, `.size()` at the end. Pure text work: what steps mean is in reader.py and general.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

PATH_CHARS_MAX = 1024
STEPS_MAX = 32
DESCENTS_MAX = 2  # `..` in one path: each multiplies the work on one body


class PathError(ValueError):
    """An invalid path. `at`: the position of the error, in characters from 1."""

    def __init__(self, text: str, at: int) -> None:
        super().__init__(f"at character {at}: {text}")
        self.at = at


class PathKind(Enum):
    """The kinds of steps in a path."""

    NAMES = "names"  # one or more members of an object
    INDEXES = "indexes"  # one or more elements of an array; below 0 from its end
    SLICE = "slice"  # elements `[start, end)`, every step-th
    ALL = "all"
    FILTER = "filter"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class PathStep:
    """One selection in a JSON path, such as `.name` or `[0]`.

    `deep`: it also applies to everything below. `at`: its position, from 1.
    """

    kind: PathKind
    at: int
    names: tuple[str, ...] = ()
    numbers: tuple[int | None, ...] = ()
    text: str = ""
    deep: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the step selects one member or one element, so that it has at most one match."""
        return not self.deep and len(self.names) + len(self.numbers) == 1 and self.kind is not PathKind.SLICE


_NAME = re.compile(r"[\w$@]+")
_QUOTED = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""")
_NAME_LIST = re.compile(rf"\s*(?:{_QUOTED.pattern})(?:\s*,\s*(?:{_QUOTED.pattern}))*\s*")
_INDEXES = re.compile(r"\s*-?[0-9]{1,9}(?:\s*,\s*-?[0-9]{1,9})*\s*")
_SLICE = re.compile(r"\s*(-?[0-9]{1,9})?\s*:\s*(-?[0-9]{1,9})?\s*(?::\s*([0-9]{1,9})?\s*)?")
_SHORT_FILTER = re.compile(
    r"""\s*(?:@\.)?([\w$]+)\s*(==|=|!=|<>|<=|>=|<|>)\s*"""
    r"""(-?[0-9]+(?:\.[0-9]+)?|'[^'\\]*'|"[^"\\]*"|true|false|null)\s*"""
)
_BRACKETS = "a name in quotes, numbers, start:end, *, ?(filter) or name=value"


def parse_path(text: str) -> tuple[PathStep, ...]:
    """Parse a path into its steps; `$` alone has none. Raises PathError."""
    if len(text) > PATH_CHARS_MAX:
        raise PathError(f"it has {len(text)} characters; allowed: at most {PATH_CHARS_MAX}", 1)
    steps = tuple(_PathParser(text).parse_steps())
    if len(steps) > STEPS_MAX:
        raise PathError(f"it has {len(steps)} steps; allowed: at most {STEPS_MAX}", steps[STEPS_MAX].at)
    if count_descents(steps) > DESCENTS_MAX:
        raise PathError(f"it has {count_descents(steps)} times `..`; allowed: at most {DESCENTS_MAX}", 1)
    for step in steps[:-1]:
        if step.kind is PathKind.SIZE:
            raise PathError("nothing may follow .size()", step.at)
    return steps


def count_descents(steps: tuple[PathStep, ...]) -> int:
    """Count how often the steps descend into everything below (`..`), filters included."""
    return sum(step.deep + step.text.count("..") for step in steps)


class _PathParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def parse_steps(self) -> list[PathStep]:
        text = self._text
        path_steps: list[PathStep] = []
        if text.startswith("$") and text[1:2] in ("", ".", "/", "["):
            self._at = 1
        elif text[:1] not in (".", "/", "["):
            path_steps.append(self._parse_name(deep=False))
        while self._at < len(text):
            path_steps.append(self._parse_step())
        return path_steps

    def _parse_step(self) -> PathStep:
        text, at = self._text, self._at
        if text.startswith("..", at):
            self._at += 2
            return (
                self._parse_bracket(deep=True)
                if text.startswith("[", self._at)
                else self._parse_name(deep=True)
            )
        if text[at] in "./":
            self._at += 1
            return self._parse_name(deep=False)
        if text[at] == "[":
            return self._parse_bracket(deep=False)
        if text[at] == "-":
            raise PathError("a hyphen; names with hyphens stand in brackets: ['a-b']", at + 1)
        raise PathError(f"found {text[at]!r}; expected . / .. or [", at + 1)

    def _parse_name(self, *, deep: bool) -> PathStep:
        text, at = self._text, self._at
        if text.startswith("*", at):
            self._at += 1
            return PathStep(PathKind.ALL, at + 1, deep=deep)
        if text.startswith("size()", at) and not deep:
            self._at += 6
            return PathStep(PathKind.SIZE, at + 1)
        match = _NAME.match(text, at)
        if match is None:
            raise PathError(f"found {text[at : at + 1] or 'the end'!r}; expected a name or *", at + 1)
        self._at = match.end()
        return PathStep(PathKind.NAMES, at + 1, names=(match[0],), deep=deep)

    def _parse_bracket(self, *, deep: bool) -> PathStep:
        at = self._at
        end = self._find_closing(at)
        inner = self._text[at + 1 : end]
        self._at = end + 1
        if inner.strip() == "*":
            return PathStep(PathKind.ALL, at + 1, deep=deep)
        if inner.lstrip().startswith("?"):
            return PathStep(PathKind.FILTER, at + 1, text=_checked_filter(inner.strip(), at + 2), deep=deep)
        if _NAME_LIST.fullmatch(inner):
            names = tuple(_unquote_match(match) for match in _QUOTED.finditer(inner))
            return PathStep(PathKind.NAMES, at + 1, names=names, deep=deep)
        if _INDEXES.fullmatch(inner):
            return PathStep(PathKind.INDEXES, at + 1, numbers=tuple(map(int, inner.split(","))), deep=deep)
        return self._parse_rest(inner, at, deep)

    def _parse_rest(self, inner: str, at: int, deep: bool) -> PathStep:
        if match := _SLICE.fullmatch(inner):
            numbers = tuple(None if one is None else int(one) for one in match.groups())
            if numbers[2] == 0:
                raise PathError("a slice with step 0; allowed: 1 or more", at + 2)
            return PathStep(PathKind.SLICE, at + 1, numbers=numbers, deep=deep)
        if match := _SHORT_FILTER.fullmatch(inner):
            sign = {"=": "==", "<>": "!="}.get(match[2], match[2])
            return PathStep(PathKind.FILTER, at + 1, text=f"?(@.{match[1]} {sign} {match[3]})", deep=deep)
        raise PathError(f"[{inner}] is not understood; expected {_BRACKETS}", at + 1)

    def _find_closing(self, at: int) -> int:
        """Return the index where the bracket at `at` closes; brackets in quotes are ignored."""
        depth, quote = 0, ""
        index = at
        while index < len(self._text):
            char = self._text[index]
            if quote:
                if char == "\\":
                    index += 1
                elif char == quote:
                    quote = ""
            elif char in "'\"":
                quote = char
            else:
                depth += (char == "[") - (char == "]")
                if depth == 0:
                    return index
            index += 1
        raise PathError("this [ is not closed", at + 1)


def _unquote_match(match: re.Match[str]) -> str:
    inner = match[1] if match[1] is not None else match[2]
    return re.sub(r"\\(.)", r"\1", inner)


def _checked_filter(text: str, at: int) -> str:
    if "=~" in text:
        raise PathError("=~ (regular expressions) is not allowed in order keys", at + text.index("=~"))
    plain = _QUOTED.sub(lambda match: "'" * len(match[0]), text)
    if "`" in plain:
        raise PathError("functions in ` are not allowed in order keys", at + plain.index("`"))
    return text
