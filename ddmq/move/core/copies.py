"""A message on its way to another engine: what is appended there, and where a copy says it comes from. Pure.

A copy is the message as it stood: id, born time, key, tag, flags, properties, body, due time, and the
properties of the system, plus one (names.MOVED_PROPERTY): SOURCE/TOPIC/QUEUE/OFFSET. Only what stands in the
queue that it was copied into, under its own topic and number, counts as a copy: what a level fires from one
does not.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from backend.records import NewRecord, QueueRef, StoredRecord
from ddmq_common.delivery import key_and_tags
from ddmq_common.names import MOVED_PROPERTY


class CopyOrigin(NamedTuple):
    """The source queue of a copy: the source's id, the topic's name and the queue's number."""

    source: str
    topic: str
    queue_id: int

    @property
    def prefix(self) -> str:
        """Return the prefix of the source reference that each copy carries."""
        return f"{self.source}/{self.topic}/{self.queue_id}/"

    def offset_of(self, reference: str | bytes) -> int:
        """Return the source offset in the source reference of a copy; -1 if it is not from this
        queue."""
        text = reference if isinstance(reference, str) else reference.decode(errors="replace")
        if not text.startswith(self.prefix):
            return -1
        number = text[len(self.prefix) :]
        return int(number) if number.isascii() and number.isdigit() and len(number) < 20 else -1


def copy_of(record: StoredRecord, origin: CopyOrigin, target: QueueRef) -> NewRecord:
    """Build the copy of a record, to be appended to `target`."""
    delivery = bytes(record.delivery)
    key, tags = key_and_tags(delivery)
    system = {**record.system, MOVED_PROPERTY: f"{origin.prefix}{record.offset}"}
    return NewRecord(
        target.topic, target.queue_id, record.message_id, record.born_ms, delivery, key, tags, record.flags,
        record.due_ms, system,
    )  # fmt: skip


def hash_record(record: StoredRecord) -> bytes:
    """Return the digest of everything in a message that its copy must also have."""
    system = sorted((name, value) for name, value in record.system.items() if name != MOVED_PROPERTY)
    facts = f"{record.born_ms} {record.flags} {record.due_ms} {system}".encode()
    return blake2b(
        b"%b %d %b" % (facts, len(facts), record.message_id) + record.delivery, digest_size=8
    ).digest()
