"""The common interface of the kinds of operations: a draft of a plan, and a target that changes batches."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from ddmq.server.admin.operations.state import BatchResult

PLAN_S = 10.0  # for counting; what is beyond is not counted
ERROR_CHARS = 300  # of an error text in a sample
_OPTIONS = {"offsets": "--offset", "keys": "--key", "ids": "--id"}
EncodeProgress = Callable[[BatchResult], Mapping[str, bytes]]


class PlanDraft(NamedTuple):
    """The part of a plan that depends on its kind. The fields have the meaning of those of Plan; `items`:
    the listed items."""

    counted: int
    exact: bool
    skipped: dict[str, int]
    sample: list[dict[str, Any]]
    reaches: dict[str, Any]
    cursor: Any
    items: list[Any]


class OperationTarget(Protocol):
    """The things that an operation changes, batch by batch."""

    batch_max: int  # items in a batch
    missing: str  # the reason with which items that no batch met are counted as skipped

    def run_batch(self, cursor: Any, limit: int, encode: EncodeProgress) -> tuple[BatchResult, bool]:
        """Change up to `limit` items from `cursor` on. Return the result, and whether it is stored already:
        `encode` returns the settings that store it, for a commit that includes them."""


def build_command(kind: str, action: str, chosen: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return the `ddmq` command that makes the same plan."""
    words = ["ddmq", "op", "plan", kind.replace("_", "-"), action.replace("_", "-")]
    for name, value in {**chosen, **options}.items():
        option = _OPTIONS.get(name, "--" + name.removesuffix("_ms").replace("_", "-"))
        for each in value if isinstance(value, list) else [value]:
            words += [option] if each is True else [f"{option}={each}"]
    return shlex.join(words)


def stated_fields(body: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a filter that the request states."""
    fields = {name: getattr(body, name) for name in body.__struct_fields__}
    return {name: value for name, value in fields.items() if value not in (None, [])}


def shorten_fields(row: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return some fields of a row for a sample, with long texts truncated."""
    return {
        name: value[:ERROR_CHARS] if isinstance(value := row[name], str) else value
        for name in names
        if name in row
    }
