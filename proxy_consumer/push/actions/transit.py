"""Transit: build a new JSON out of paths of the present one.

Target path ← source path. Targets are names joined by dots; nodes on the way are made. A source that
leads nowhere is left out. The target `$` names the object everything is built upon; without it that is an
empty one. Nothing is copied but the objects on the way to a target. Settings are checked when the
subscription is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from proxy_consumer.push.actions.job import ABSENT, CONTINUE, ActionJob, ActionOutcome, fail
from proxy_consumer.push.actions.paths import compile_path
from proxy_consumer.push.actions.work import Work

BASE = "$"


def transit(mapping: Mapping[str, str]) -> Callable[[ActionJob], ActionOutcome]:
    """The action. Raises ValueError that names the bad path."""
    if not mapping:
        raise ValueError("push.transit is empty; give it target: source, or take Transit out of actions")
    base = compile_path(mapping[BASE]) if BASE in mapping else None
    moves = [
        (target_names(target), compile_path(source)) for target, source in mapping.items() if target != BASE
    ]

    def step(job: ActionJob) -> ActionOutcome:
        given = {} if base is None else base(job)
        if not isinstance(given, dict):
            return fail(f"Transit: {mapping[BASE]} is the base and is not an object")
        made = _Made(given, job.work)
        for names, source in moves:
            value = source(job)
            if value is not ABSENT:
                made.put(names, value)
        job.json = made.root
        return CONTINUE

    return step


def target_names(target: str) -> tuple[str, ...]:
    """The names of a target path. Raises ValueError."""
    names = tuple(target.removeprefix("$.").split("."))
    if not all(names) or any(set(name) & set("[]*$/") for name in names):
        raise ValueError(f"push.transit: target {target!r} is not a path of names such as order.id, nor $")
    return names


class _Made:
    """The new JSON. Values are those of the old one; only objects on the way to a target are copied, once."""

    def __init__(self, base: dict[str, Any], work: Work) -> None:
        self._work = work
        self._own: dict[int, dict[str, Any]] = {}
        self.root = self._copy(base)

    def put(self, names: tuple[str, ...], value: Any) -> None:
        node = self.root
        for name in names[:-1]:
            inner = node.get(name)
            own = self._own.get(id(inner))
            if own is None:
                own = node[name] = self._copy(inner if isinstance(inner, dict) else {})
            node = own
        node[names[-1]] = value

    def _copy(self, node: dict[str, Any]) -> dict[str, Any]:
        self._work.look(len(node))
        own = dict(node)
        self._own[id(own)] = own  # kept, so that no other object takes its identity
        return own
