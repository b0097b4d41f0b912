"""Paths into the JSON of a job; the dialect is that of order keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from jsonpath_ng.exceptions import JSONPathError
from jsonpath_ng.ext.parser import parse

from proxy_consumer.actions.job import ABSENT

_PLAIN = re.compile(r"\$?(?:[./]?[\w-]+|\[-?\d+\]|\['[^']+'\])+\Z")
_TOKEN = re.compile(r"\[(-?\d+)\]|\['([^']+)'\]|[./]?([\w-]+)")
Lookup = Callable[[Any], Any]


def compile_path(text: str) -> Lookup:
    """What finds the value at a path; it gives ABSENT where there is none. Raises ValueError."""
    path = text.strip()
    if path == "$":
        return lambda value: value
    if _PLAIN.match(path):
        return _walk(_tokens(path.removeprefix("$")))
    return _general(path)


def _tokens(path: str) -> list[str | int]:
    return [
        int(match[1]) if match[1] is not None else match[2] or match[3] for match in _TOKEN.finditer(path)
    ]


def _walk(tokens: list[str | int]) -> Lookup:
    def find(value: Any) -> Any:
        for token in tokens:
            value = _step(value, token)
            if value is ABSENT:
                return ABSENT
        return value

    return find


def _step(value: Any, token: str | int) -> Any:
    if isinstance(token, int):
        if isinstance(value, list) and -len(value) <= token < len(value):
            return value[token]
        return ABSENT
    if isinstance(value, dict):
        return value.get(token, ABSENT)
    if isinstance(value, list):
        found = [each for each in (_step(one, token) for one in value) if each is not ABSENT]
        return found or ABSENT
    return ABSENT


def _general(path: str) -> Lookup:
    text = path if path.startswith("$") else "$" + path if path.startswith((".", "[")) else "$." + path
    try:
        compiled = parse(text)
    except (JSONPathError, ValueError, TypeError) as error:
        raise ValueError(f"path {path!r} is not a JSONPath: {error}") from error

    def find(value: Any) -> Any:
        hits = [hit.value for hit in compiled.find(value)]
        if not hits:
            return ABSENT
        return hits[0] if len(hits) == 1 else hits

    return find
