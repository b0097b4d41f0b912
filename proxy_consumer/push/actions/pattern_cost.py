"""The cost of searching a text for a regular expression, estimated from the pattern alone.

RE2 builds an automaton during the search: each new pair of a state and a character costs a step for every
active instruction, each known pair costs next to nothing. When there are too many states it starts over, and
in the end it executes the steps for every character. So a search costs at most

    text × instructions of the pattern        (steps for every character), and at most
    text + steps that build all its states    (if there are few states).

The second bound is proven by building all the states here, up to STEPS_MAX; if there are more, only the first
one applies. Counted repetition is the usual cause of many instructions and many states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from proxy_consumer.push.actions.pattern_parser import (
    Alternatives,
    Anchor,
    Characters,
    Node,
    PatternParser,
    Repeat,
    Sequence,
    UnknownPatternError,
)

STEPS_MAX = 1 << 14  # most steps to build an automaton here: some milliseconds when a subscription is created
POSITIONS_MAX = 256  # most positions of a pattern whose automaton is built
COMPILE_BYTES = 8 << 10  # time to compile the smallest pattern, in bytes that RE2 scans in that time
COMPILE_WEIGHT = 50  # the same for an instruction
UTF8_STATES = 4  # RE2 states inside a multi-byte character per state between two characters


class PatternCost(NamedTuple):
    """The bounds of a pattern's cost. `steps`: those that build all its states; None: perhaps too many."""

    instructions: int
    steps: int | None

    def search_cost(self, size: int) -> int:
        """Return the most that a compilation and a search in `size` bytes cost, in bytes scanned."""
        search = size * self.instructions
        if self.steps is not None:
            search = min(search, size + self.steps)
        return COMPILE_BYTES + COMPILE_WEIGHT * self.instructions + search


@lru_cache(256)
def pattern_cost(pattern: str) -> PatternCost | None:
    """Return the cost of a pattern; None if PatternParser does not understand it."""
    parser = PatternParser(pattern)
    try:
        tree = parser.parse()
    except (UnknownPatternError, RecursionError):
        return None
    return PatternCost(tree.weight, _count_steps(tree, len(parser.symbols)) if tree.exact else None)


def _count_steps(tree: Node, symbols: int) -> int | None:
    """Return the steps that build all states of the pattern's automaton; None if there are too many."""
    try:
        positions = _Positions(tree)
    except _TooManyPositionsError:
        return None
    classes = positions.character_classes(symbols)
    steps, start = 0, 0
    states, pending = {start}, [start]
    while pending:
        state = pending.pop()
        active = positions.positions_after(state)
        for members in classes:
            following = active & members
            steps += 1 + active.bit_count()
            if steps > STEPS_MAX:
                return None
            if not following & positions.matched and following not in states:
                states.add(following)
                pending.append(following)
    return steps * UTF8_STATES * max(1, tree.weight // max(1, len(positions.characters)))


class _TooManyPositionsError(Exception):
    """The pattern has too many positions, or an anchor in its middle."""


class _Ends(NamedTuple):
    """The positions with which a part of the pattern may begin and end (bit masks), and whether it may be
    empty."""

    first: int
    last: int
    empty: bool


class _Positions:
    """The characters of a pattern, with each counted repetition expanded, and which may follow which.

    A set of positions is an integer with one bit for each. `matched`: the positions at which a match is
    complete.
    """

    def __init__(self, tree: Node) -> None:
        self.characters: list[int] = []
        self._follow: list[int] = []
        self.matched = self._anchored = self._floating = 0
        for branch in tree.children if isinstance(tree, Alternatives) else (tree,):
            self._add_branch(branch)

    def character_classes(self, symbols: int) -> set[int]:
        """Group the positions by the characters that they accept: one bit mask of positions for each
        character.

        `symbols`: how many characters the pattern mentions; one more stands for all others.
        """
        return {
            sum(1 << index for index, accepted in enumerate(self.characters) if accepted >> symbol & 1)
            for symbol in range(symbols + 1)
        }

    def positions_after(self, state: int) -> int:
        """Return the bit mask of the positions that may follow `state`; state 0 is also the start of the
        text."""
        following = self._floating if state else self._floating | self._anchored
        for index in _iterate_bits(state):
            following |= self._follow[index]
        return following

    def _add_branch(self, branch: Node) -> None:
        children = branch.children if isinstance(branch, Sequence) else (branch,)
        anchored = bool(children) and children[0] == Anchor(start=True)
        anchored_at_end = len(children) > anchored and children[-1] == Anchor(start=False)
        ends = self._add_sequence(children[anchored : len(children) - anchored_at_end])
        if anchored:
            self._anchored |= ends.first
        else:
            self._floating |= ends.first
        if not anchored_at_end:
            self.matched |= ends.last

    def _add_node(self, node: Node) -> _Ends:
        match node:
            case Characters():
                return self._add_position(node)
            case Sequence():
                return self._add_sequence(node.children)
            case Alternatives():
                return _join_alternatives([self._add_node(child) for child in node.children])
            case Repeat():
                return self._add_repeat(node)
        raise _TooManyPositionsError  # an anchor

    def _add_position(self, node: Characters) -> _Ends:
        if len(self.characters) >= POSITIONS_MAX:
            raise _TooManyPositionsError
        bit = 1 << len(self.characters)
        self.characters.append(node.symbols)
        self._follow.append(0)
        return _Ends(bit, bit, False)

    def _add_sequence(self, children: Iterable[Node]) -> _Ends:
        ends = _Ends(0, 0, True)
        for child in children:
            ends = self._join_ends(ends, self._add_node(child))
        return ends

    def _join_ends(self, one: _Ends, other: _Ends) -> _Ends:
        self._link_positions(one.last, other.first)
        return _Ends(
            one.first | (other.first if one.empty else 0),
            other.last | (one.last if other.empty else 0),
            one.empty and other.empty,
        )

    def _add_repeat(self, node: Repeat) -> _Ends:
        total = _Ends(0, 0, True)
        copies = max(node.low, 1) if node.high is None else node.high
        for index in range(copies):
            ends = self._add_node(node.children[0])
            if node.high is None and index == copies - 1:
                self._link_positions(ends.last, ends.first)
            if index >= node.low:
                ends = ends._replace(empty=True)
            total = self._join_ends(total, ends)
        return total

    def _link_positions(self, last: int, first: int) -> None:
        for index in _iterate_bits(last):
            self._follow[index] |= first


def _join_alternatives(branches: Iterable[_Ends]) -> _Ends:
    first = last = 0
    empty = False
    for branch in branches:
        first, last, empty = first | branch.first, last | branch.last, empty or branch.empty
    return _Ends(first, last, empty)


def _iterate_bits(members: int) -> Iterator[int]:
    while members:
        lowest = members & -members
        yield lowest.bit_length() - 1
        members ^= lowest
