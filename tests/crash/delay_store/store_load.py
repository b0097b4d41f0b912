"""Batches that follow from a seed: whoever knows how many were written knows what the store must hold."""

from __future__ import annotations

from random import Random

from delay_service.store.memory_store import MemoryDelayStore
from delay_service.store.port import DelayStore, IdKind, IdState, Pending, Scan, StoreChanges

NUMBER = "number"  # the named value that says how many batches there are
TOPICS = ("a", "b", "c")
FOREVER = 1 << 60
UUIDS = 4_000


class Load:
    """The same batches for the same seed; `model` holds what they make."""

    def __init__(self, seed: int, body_bytes: int = 300) -> None:
        self.random = Random(seed)
        self.body_bytes = body_bytes
        self.model = MemoryDelayStore()
        self.number = 0
        self.offset = 0

    def next(self) -> StoreChanges:
        """One more batch; the model has it already."""
        self.number += 1
        changes = self._messages()
        changes.meta = {NUMBER: b"%d" % self.number}
        for message in changes.added:
            changes.ids[message.uuid] = IdState(IdKind.PENDING, message.due_ms, message.offset)
        for message in changes.removed:
            state = IdState(IdKind.FIRED, message.due_ms, message.offset, self.number + 20)
            changes.ids.setdefault(message.uuid, state)
        for uuid in self.model.forgettable(self.number, 50):
            changes.ids.setdefault(uuid, None)
        self.model.write(changes)
        return changes

    def _messages(self) -> StoreChanges:
        pick = self.random.random()
        topic = self.random.choice(TOPICS)
        if pick < 0.5:
            return StoreChanges(added=[self._message() for _ in range(self.random.randrange(1, 200))])
        if pick < 0.75:
            return StoreChanges(removed=self.model.due(FOREVER, self.random.randrange(1, 300), FOREVER))
        if pick < 0.85:
            due = self.model.due(FOREVER, 200, FOREVER)
            return StoreChanges(
                removed=due[::7], added=[one._replace(due_ms=one.due_ms + 50) for one in due[::7]]
            )
        if pick < 0.93:
            return StoreChanges(
                deferred=[one for one in self.model.due(FOREVER, 60, FOREVER) if one.topic == topic]
            )
        aside = self.model.read_deferred(topic, 60)
        return StoreChanges(undeferred=aside[:20], removed_deferred=aside[20:])

    def _message(self) -> Pending:
        self.offset += 1
        due_ms = self.number + self.random.randrange(100)
        body = self.random.randbytes(self.random.randrange(self.body_bytes))
        uuid = b"%016d" % self.offset
        return Pending(due_ms, self.offset, 0, self.random.choice(TOPICS), uuid, "{}", uuid, 1, 0, b"", body)


def written(store: DelayStore) -> int:
    """How many batches the store has."""
    return int(store.meta(NUMBER) or b"0")


def model_of(seed: int, number: int) -> MemoryDelayStore:
    """What that many batches make."""
    load = Load(seed)
    while load.number < number:
        load.next()
    return load.model


def assert_same(store: DelayStore, model: DelayStore) -> None:
    """Everything that can be asked."""
    assert store.scan(Scan(None, 0, FOREVER, UUIDS * 10)) == model.scan(Scan(None, 0, FOREVER, UUIDS * 10))
    assert dict(store.counts()) == dict(model.counts())
    assert store.count_due(None, 0, 1_440, 1) == model.count_due(None, 0, 1_440, 1)
    assert store.next_due() == model.next_due()
    assert store.due(FOREVER, UUIDS * 10, FOREVER) == model.due(FOREVER, UUIDS * 10, FOREVER)
    for topic in TOPICS:
        assert store.read_deferred(topic, UUIDS) == model.read_deferred(topic, UUIDS)
    uuids = [b"%016d" % offset for offset in range(1, UUIDS)]
    assert store.ids(uuids) == model.ids(uuids)
