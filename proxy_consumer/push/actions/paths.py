"""Paths into the JSON of a job; the dialect is that of order keys (docs/order-keys.md).

A plain path into a body of its shape is followed directly; every other one is evaluated by jsonpath-ng.
Several matches make one list, a single match is the value itself.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from proxy_consumer.order_keys.canonical import TooMuchWork, WrittenFloat, parse_written_float
from proxy_consumer.order_keys.general import build_expression
from proxy_consumer.order_keys.path import PathKind, PathStep, count_descents, parse_path
from proxy_consumer.push.actions.job import ABSENT, ActionJob

VALUES_MAX = 16_384  # most values that a path that is not plain visits (counted once per `..`)
Lookup = Callable[[ActionJob], Any]


class _Unshaped(Exception):
    """The JSON does not have the shape of the path."""


def compile_path(text: str) -> Lookup:
    """Return a function that returns the value at a path in a job's JSON, or ABSENT. Raises ValueError.

    The function itself raises TooMuchWork if the JSON has too many values, or if all lookups of the job
    together selected too much. The value that it returns is part of the JSON and must not be changed.
    """
    try:
        steps = parse_path(text.strip())
        general = _compile_general(steps)
    except ValueError as error:
        raise ValueError(f"path {text!r} is not a JSONPath: {error}") from error
    if not all(step.is_plain for step in steps):
        return general
    tokens: list[str | int] = [_path_token(step) for step in steps]

    def find_value(job: ActionJob) -> Any:
        try:
            value = _walk_tokens(job.json, tokens)
        except _Unshaped:
            return general(job)
        job.work.count_match(value)
        return value

    return find_value


def _path_token(step: PathStep) -> str | int:
    return step.names[0] if step.names else step.numbers[0] or 0


def _walk_tokens(value: Any, tokens: list[str | int]) -> Any:
    for token in tokens:
        if isinstance(token, int):
            if not isinstance(value, list) or not -len(value) <= token < len(value):
                return ABSENT
            value = value[token]
        elif isinstance(value, dict):
            if token not in value:
                return ABSENT
            value = value[token]
        elif isinstance(value, list):
            raise _Unshaped
        else:
            return ABSENT
    return value


def _compile_general(steps: tuple[PathStep, ...]) -> Lookup:
    find = build_expression(steps).find
    deep = max(1, count_descents(steps))
    values_max = int(VALUES_MAX ** (1 / deep))
    compares = any(step.kind is PathKind.FILTER for step in steps)

    def find_general(job: ActionJob) -> Any:
        value = job.json
        job.work.count_values(_check_size(value, values_max))
        hits = [hit.value for hit in find(_with_floats(value) if compares else value)]
        if compares:
            hits = _with_decimals(hits)
        if not hits:
            return ABSENT
        match = hits[0] if len(hits) == 1 else hits
        job.work.count_match(match)
        return match

    return find_general


def _check_size(value: Any, values_max: int) -> int:
    """Count the values in `value`. Raises TooMuchWork if there are more than `values_max`."""
    remaining, rest = values_max, [value]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            rest += one.values()
            remaining -= len(one)
        elif isinstance(one, list):
            rest += one
            remaining -= len(one)
        if remaining < 0:
            raise TooMuchWork(f"more than {values_max} values to look through")
    return values_max - remaining


def _with_floats(value: Any) -> Any:
    """Return a copy with decimals as floats, the only type that jsonpath-ng compares by size."""
    if isinstance(value, Decimal):
        return parse_written_float(str(value))
    if isinstance(value, dict):
        return {name: _with_floats(inner) for name, inner in value.items()}
    return [_with_floats(inner) for inner in value] if isinstance(value, list) else value


def _with_decimals(value: Any) -> Any:
    """Return a copy with the floats of `_with_floats` as decimals again."""
    if isinstance(value, WrittenFloat):
        return Decimal(value.text)
    if isinstance(value, dict):
        return {name: _with_decimals(inner) for name, inner in value.items()}
    return [_with_decimals(inner) for inner in value] if isinstance(value, list) else value
