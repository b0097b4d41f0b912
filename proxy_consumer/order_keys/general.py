"""Evaluates the whole path dialect, by jsonpath-ng. Each step becomes an expression of it, so that nothing is
quoted twice.

A name applied to an array is applied to each of its elements; several matches make one list, which is the
key; a single match is the key itself. A body with more than VALUES_MAX values is not searched.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

from jsonpath_ng import Child, DatumInContext, Descendants, Fields, Index, JSONPath, Root, Slice, Wildcard
from jsonpath_ng.exceptions import JSONPathError
from jsonpath_ng.ext.filter import Expression
from jsonpath_ng.ext.iterable import Len
from jsonpath_ng.ext.parser import parse

from proxy_consumer.order_keys.canonical import check_work, decode, text_of
from proxy_consumer.order_keys.path import PathError, PathKind, PathStep, count_descents

_SET_OPERATORS = ("_Intersect", "_Union")  # classes of & and | between paths; importing them warns


class Members(JSONPath):
    """A path step that selects members of an object, or of each object in an array."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find(self, datum: Any) -> list[DatumInContext]:
        """Return the matches, in the order of the names, then of the elements."""
        datum = DatumInContext.wrap(datum)
        value = datum.value
        if isinstance(value, dict):
            return [
                DatumInContext(value[name], path=self, context=datum) for name in self._names if name in value
            ]
        if not isinstance(value, list):
            return []
        elements = (DatumInContext(one, path=self, context=datum) for one in value)
        return [hit for element in elements for hit in self.find(element)]


def general_reader(steps: tuple[PathStep, ...]) -> Callable[[bytes], str | None]:
    """Return a function that reads the canonical text of the key from a body; it returns None if there is no
    key.

    The function raises ValueError or RecursionError for unreadable bodies.
    """
    find = build_expression(steps).find
    deep = max(1, count_descents(steps))

    def read(body: bytes) -> str | None:
        check_work(body, deep)
        hits = [hit.value for hit in find(decode(body))]
        if not hits or (len(hits) == 1 and hits[0] is None):
            return None
        return text_of(hits[0] if len(hits) == 1 else hits)

    return read


def build_expression(steps: tuple[PathStep, ...]) -> JSONPath:
    """Build the jsonpath-ng expression for the steps. Raises PathError for an unknown filter."""
    path: JSONPath = Root()
    for step in steps:
        join = Descendants if step.deep else Child
        path = join(path, _build_step(step))
    return path


def _build_step(step: PathStep) -> JSONPath:
    if step.kind is PathKind.NAMES:
        return Fields(*step.names) if step.deep else Members(step.names)
    if step.kind is PathKind.INDEXES:
        return Index(*(number for number in step.numbers if number is not None))
    if step.kind is PathKind.SLICE:
        return Slice(*step.numbers)
    if step.kind is PathKind.ALL:
        return Wildcard()
    return Len() if step.kind is PathKind.SIZE else _build_filter(step)


def _build_filter(step: PathStep) -> JSONPath:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            parsed = parse(f"$[{step.text}]")
    except (JSONPathError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise PathError(f"the filter [{step.text}] is not understood: {error}", step.at) from error
    if not isinstance(parsed, Child):
        raise PathError(f"the filter [{step.text}] is not understood", step.at)
    right: JSONPath = parsed.right
    _check_filter(right, step)
    return right


def _check_filter(condition: JSONPath, step: PathStep) -> None:
    """Raise PathError for a filter that the library cannot evaluate, or only at unbounded cost."""
    nodes = list(_all_nodes(condition))
    if any(type(node).__name__ in _SET_OPERATORS for node in nodes):
        raise PathError(f"the filter [{step.text}] is not understood; and, or of conditions: && ||", step.at)
    tested = [node.target for node in nodes if isinstance(node, Expression)]
    if any(isinstance(node, Root) for target in tested for node in _all_nodes(target)):
        # it would be evaluated once for every element
        raise PathError(f"the filter [{step.text}] has $ on the left; allowed there: @", step.at)


def _all_nodes(one: Any) -> Iterator[Any]:
    """Iterate over an expression and all expressions in it."""
    yield one
    for inner in vars(one).values():
        for node in inner if isinstance(inner, list | tuple) else (inner,):
            if isinstance(node, JSONPath | Expression):
                yield from _all_nodes(node)
