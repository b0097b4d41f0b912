"""Transit: build a new JSON out of paths of the present one.

Target path ← source path. Targets are names joined by dots; nodes on the way are made. A source that
leads nowhere is left out. The target `$` names the object everything is built upon; without it that is an
empty one. Settings are checked when the subscription is made.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from proxy_consumer.actions.job import ABSENT, CONTINUE, Job, Outcome, fail
from proxy_consumer.actions.paths import compile_path

BASE = "$"


def transit(mapping: Mapping[str, str]) -> Callable[[Job], Outcome]:
    """The action. Raises ValueError that names the bad path."""
    if not mapping:
        raise ValueError("push.transit is empty; give it target: source, or take Transit out of actions")
    base = compile_path(mapping[BASE]) if BASE in mapping else None
    moves = [
        (target_names(target), compile_path(source)) for target, source in mapping.items() if target != BASE
    ]

    def step(job: Job) -> Outcome:
        made: Any = {}
        if base is not None:
            made = copy.deepcopy(base(job.json))
            if not isinstance(made, dict):
                return fail(f"Transit: {mapping[BASE]} is the base and is not an object")
        for names, source in moves:
            value = source(job.json)
            if value is not ABSENT:
                _put(made, names, copy.deepcopy(value))
        job.json = made
        return CONTINUE

    return step


def target_names(target: str) -> tuple[str, ...]:
    """The names of a target path. Raises ValueError."""
    names = tuple(target.removeprefix("$.").split("."))
    if not all(names) or any(set(name) & set("[]*$/") for name in names):
        raise ValueError(f"push.transit: target {target!r} is not a path of names such as order.id, nor $")
    return names


def _put(node: dict[str, Any], names: tuple[str, ...], value: Any) -> None:
    for name in names[:-1]:
        inner = node.get(name)
        if not isinstance(inner, dict):
            inner = node[name] = {}
        node = inner
    node[names[-1]] = value
