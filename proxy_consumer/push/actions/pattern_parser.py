"""Parses a regular expression into a tree, from which pattern_cost.py estimates its cost.

It understands RE2's common syntax: characters, classes, `.`, groups, alternatives, repetition, flags, `^` and
`$`. For any other syntax it raises UnknownPatternError; the tree is not used for matching, so the caller only
has to assume that such a pattern is costly.

Characters are sets of symbols. A symbol is one bit for each character that the pattern mentions; all other
characters behave alike. So a set is an integer, and its complement is `~`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

REPEATS_MAX = 1000  # RE2 rejects more
DEPTH_MAX = 64
ASCII_WEIGHT = 1  # instructions of RE2 for a range of ASCII characters
UTF8_WEIGHT = 8  # the same for a set with characters beyond ASCII, which RE2 spells out byte by byte
PROPERTY_WEIGHT = 800  # the same for a Unicode property such as \pL
CLASSES = {"d": "0123456789", "s": "\t\n\f\r ", "w": "0123456789_"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
CLASSES["w"] += LETTERS + LETTERS.upper()
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
FOLDED = {"k": "\u212a", "s": "\u017f"}  # further characters that equal a letter if case is ignored
PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ")


class UnknownPatternError(Exception):
    """The pattern uses syntax that this parser does not understand."""


@dataclass(frozen=True)
class Characters:
    """A pattern node that matches one character of a set.

    `exact`: `symbols` is the set; otherwise only `weight` is valid.
    """

    symbols: int
    weight: int
    exact: bool = True


@dataclass(frozen=True)
class Anchor:
    """The beginning (`^`) or the end (`$`) of the text."""

    start: bool
    weight: int = 1
    exact: bool = True


class _Inner:
    """A node with children; it is `exact` if all its children are."""

    children: tuple[Node, ...]

    @cached_property
    def exact(self) -> bool:
        return all(child.exact for child in self.children)


@dataclass(frozen=True)
class Sequence(_Inner):
    """The children, one after another."""

    children: tuple[Node, ...]

    @cached_property
    def weight(self) -> int:
        return 1 + sum(child.weight for child in self.children)


@dataclass(frozen=True)
class Alternatives(_Inner):
    """A pattern node that matches one of its children."""

    children: tuple[Node, ...]

    @cached_property
    def weight(self) -> int:
        return len(self.children) + sum(child.weight for child in self.children)


@dataclass(frozen=True)
class Repeat(_Inner):
    """A pattern node that matches its only child at least `low` and at most `high` times (None: no upper
    bound)."""

    children: tuple[Node, ...]
    low: int
    high: int | None

    @cached_property
    def weight(self) -> int:
        copies = self.low + 1 if self.high is None else self.high
        return 1 + max(1, copies) * (1 + self.children[0].weight)


Node = Characters | Anchor | Sequence | Alternatives | Repeat


class PatternParser:
    """Parses one pattern. `symbols`: the bit of each character that the pattern mentions."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0
        self._depth = 0
        self._fold = self._dot_all = False
        self.symbols: dict[str, int] = {}

    def parse(self) -> Node:
        """Parse the whole pattern and return its tree. Raises UnknownPatternError."""
        tree = self._parse_choice()
        if self._position < len(self._pattern):
            raise UnknownPatternError
        return tree

    def _parse_choice(self) -> Node:
        children = [self._parse_sequence()]
        while self._take_sign("|"):
            children.append(self._parse_sequence())
        return children[0] if len(children) == 1 else Alternatives(tuple(children))

    def _parse_sequence(self) -> Node:
        children = []
        while self._position < len(self._pattern) and self._peek() not in "|)":
            atom = self._parse_atom()
            if atom is not None:
                children.append(self._parse_repeats(atom))
        return Sequence(tuple(children))

    def _parse_repeats(self, atom: Node) -> Node:
        while self._position < len(self._pattern):
            bounds = self._parse_bounds()
            if bounds is None:
                return atom
            if isinstance(atom, Anchor):
                raise UnknownPatternError
            self._take_sign("?")  # non-greedy: matches the same texts
            atom = Repeat((atom,), *bounds)
        return atom

    def _parse_bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take_sign(sign):
                return bounds
        return self._parse_counts() if self._peek() == "{" else None

    def _parse_counts(self) -> tuple[int, int | None]:
        inner, closing, _ = self._pattern[self._position + 1 :].partition("}")
        low, comma, high = inner.partition(",")
        if not low.isdecimal() or (high and not high.isdecimal()) or not closing:
            raise UnknownPatternError
        self._position += len(inner) + 2
        most = int(high) if high else None if comma else int(low)
        if max(int(low), most or 0) > REPEATS_MAX:
            raise UnknownPatternError
        return int(low), most

    def _parse_atom(self) -> Node | None:
        """Return the next atom; None for a group that only sets flags."""
        sign = self._pattern[self._position]
        self._position += 1
        if sign == "(":
            return self._parse_group()
        if sign == "[":
            return self._parse_class()
        if sign == "\\":
            return self._parse_escape()
        if sign in "^$":
            return Anchor(sign == "^")
        if sign == ".":
            return Characters(~0 if self._dot_all else ~self._symbol_bit("\n"), UTF8_WEIGHT)
        if sign in "*+?{":
            raise UnknownPatternError
        return self._make_literal(sign)

    def _parse_group(self) -> Node | None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise UnknownPatternError
        fold, dot_all = self._fold, self._dot_all
        if self._take_sign("?") and self._parse_flags():
            self._depth -= 1
            return None
        inner = self._parse_choice()
        if not self._take_sign(")"):
            raise UnknownPatternError
        self._depth -= 1
        self._fold, self._dot_all = fold, dot_all
        return inner

    def _parse_flags(self) -> bool:
        """Apply the flags after `(?`; return True if the group ends with them."""
        value = True
        while (sign := self._pattern[self._position : self._position + 1]) not in (":", ")"):
            self._position += 1
            if sign == "-":
                value = False
            elif sign == "i":
                self._fold = value
            elif sign == "s":
                self._dot_all = value
            elif sign != "U":  # U: non-greedy: matches the same texts
                raise UnknownPatternError
        self._position += 1
        return sign == ")"

    def _parse_escape(self) -> Node:
        sign = self._pattern[self._position : self._position + 1]
        self._position += 1
        if sign.lower() in CLASSES and sign:
            inside = self._collect_symbols(CLASSES[sign.lower()])
            return Characters(inside, 4) if sign.islower() else Characters(~inside, UTF8_WEIGHT)
        if sign in ("p", "P"):
            return self._parse_property()
        if sign in ("b", "B"):
            return Characters(0, 2, exact=False)
        return self._make_literal(self._unescape_sign(sign))

    def _parse_property(self) -> Node:
        if self._take_sign("{"):
            _, closing, rest = self._pattern[self._position :].partition("}")
            if not closing:
                raise UnknownPatternError
            self._position = len(self._pattern) - len(rest)
        else:
            self._position += 1
        return Characters(0, PROPERTY_WEIGHT, exact=False)

    def _unescape_sign(self, sign: str) -> str:
        if sign in PUNCTUATION and sign:
            return sign
        if sign not in ESCAPES:
            raise UnknownPatternError
        return ESCAPES[sign]

    def _make_literal(self, sign: str) -> Node:
        ascii_only = sign.isascii()
        if self._fold and not ascii_only:
            return Characters(0, UTF8_WEIGHT, exact=False)
        return Characters(
            self._collect_symbols(sign),
            (3 if self._fold else ASCII_WEIGHT) if ascii_only else len(sign.encode()),
        )

    def _parse_class(self) -> Node:
        outside = self._take_sign("^")
        inside, ranges, exact = 0, 0, True
        first = True
        while first or self._peek() != "]":
            first = False
            symbols, weight, item_exact = self._parse_class_item()
            inside, ranges, exact = inside | symbols, ranges + weight, exact and item_exact
        self._position += 1
        return Characters(~inside if outside else inside, ranges + (UTF8_WEIGHT if outside else 0), exact)

    def _parse_class_item(self) -> tuple[int, int, bool]:
        """Return one item of a class: its symbols, its weight, and whether the symbols are exact."""
        sign = self._peek()
        self._position += 1
        if not sign or (sign == "[" and self._peek() == ":"):
            raise UnknownPatternError
        if sign == "\\":
            node = self._parse_escape()
            if not isinstance(node, Characters) or self._is_range():
                raise UnknownPatternError
            return node.symbols, node.weight, node.exact
        if not self._is_range():
            node = self._make_literal(sign)
            assert isinstance(node, Characters)
            return node.symbols, node.weight, node.exact
        return self._parse_range(sign)

    def _is_range(self) -> bool:
        following = self._pattern[self._position : self._position + 2]
        return len(following) == 2 and following[0] == "-" and following[1] != "]"

    def _parse_range(self, first: str) -> tuple[int, int, bool]:
        last = self._pattern[self._position + 1]
        self._position += 2
        if last in "\\[" or last < first:
            raise UnknownPatternError
        if not last.isascii():
            return 0, 3 * UTF8_WEIGHT, False
        signs = "".join(map(chr, range(ord(first), ord(last) + 1)))
        return self._collect_symbols(signs), 4 if self._fold else ASCII_WEIGHT, True

    def _collect_symbols(self, signs: str) -> int:
        symbols = 0
        for sign in signs:
            symbols |= self._symbol_bit(sign)
            if self._fold and sign.isascii() and sign.isalpha():
                symbols |= self._symbol_bit(sign.swapcase())
                if sign.lower() in FOLDED:
                    symbols |= self._symbol_bit(FOLDED[sign.lower()])
        return symbols

    def _symbol_bit(self, sign: str) -> int:
        return self.symbols.setdefault(sign, 1 << len(self.symbols))

    def _peek(self) -> str:
        return self._pattern[self._position : self._position + 1]

    def _take_sign(self, sign: str) -> bool:
        if self._peek() != sign:
            return False
        self._position += 1
        return True
