"""Plain paths, members and elements only, read straight from the body's bytes.

Only what the path leads through is decoded: a typed decoder skips the rest of the body and hands over the
value as written. Where the body is not shaped as the path says (an array where an object is expected, a
member that stands twice) `Unshaped` sends the caller to the general way, which knows what that means.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

import msgspec

from proxy_consumer.order_keys.canonical import text_of_raw
from proxy_consumer.order_keys.path import PathKind, PathStep

Read = Callable[[bytes], bytes]  # from a value's JSON to that of the value asked for; b"" = missing
_NOTHING = msgspec.Raw(b"")


class Unshaped(Exception):
    """The body has another shape than the path."""


def plain_reader(steps: tuple[PathStep, ...]) -> Callable[[bytes], str | None]:
    """From body to canonical text. Raises Unshaped; ValueError, RecursionError for bodies not readable."""
    stages = [
        stage
        for kind, run in groupby(steps, key=lambda step: step.kind)
        for stage in ([_members([s.names[0] for s in run])] if kind is PathKind.NAMES else map(_element, run))
    ]
    if len(stages) == 1:
        only = stages[0]

        def read_one(body: bytes) -> str | None:
            raw = only(body)
            return text_of_raw(raw) if raw else None

        return read_one

    def read(body: bytes) -> str | None:
        raw = body
        for stage in stages:
            raw = stage(raw)
            if not raw:
                return None
        return text_of_raw(raw)

    return read


def _members(names: list[str]) -> Read:
    """Down a run of names."""
    shape: Any = msgspec.Raw
    default: Any = _NOTHING
    for name in reversed(names):
        shape = msgspec.defstruct("Member", [("next", shape, default)], rename={"next": name})
        shape, default = shape | None, None
    decode = msgspec.json.Decoder(shape).decode
    deeper = range(len(names) - 1)

    def read(raw: bytes) -> bytes:
        try:
            found = decode(raw)
        except msgspec.ValidationError as error:
            raise Unshaped from error
        for _ in deeper:
            if found is None:
                return b""
            found = found.next
        return b"" if found is None else bytes(found.next)

    return read


def _element(step: PathStep) -> Read:
    """One element of an array."""
    decode = msgspec.json.Decoder(list[msgspec.Raw] | None).decode
    (index,) = step.numbers
    assert index is not None
    at: int = index

    def read(raw: bytes) -> bytes:
        try:
            found = decode(raw)
        except msgspec.ValidationError as error:
            raise Unshaped from error
        return b"" if found is None or not -len(found) <= at < len(found) else bytes(found[at])

    return read
