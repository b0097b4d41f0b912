"""A member of a group that takes what it is given, until it leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from backend.port import Assignment, Backend, Join
from backend.records import QueueRef
from tests.support.waits import until


class _Listener:
    def __init__(self) -> None:
        self.assignments: list[Assignment] = []

    def assigned(self, assignment: Assignment) -> None:
        self.assignments.append(assignment)

    def revoked(self, queues: Sequence[QueueRef], deadline: float) -> None:
        pass

    def lost(self, queues: Sequence[QueueRef]) -> None:
        pass


@contextmanager
def seated(backend: Backend, group: str, topic: str) -> Iterator[None]:
    listener = _Listener()
    membership = backend.join(Join(group, topic, address="127.0.0.1:1"), listener)
    until(lambda: listener.assignments, lambda: "it holds queues")
    yield
    membership.leave()
