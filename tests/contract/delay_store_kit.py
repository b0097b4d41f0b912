"""What the tests of delay stores share: messages, ids, and the stores under test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ddmq_common.delays.command import DelayCommand, encode_command
from ddmq_common.rocks.database import RocksOptions
from delay_service.store.memory_store import MemoryDelayStore
from delay_service.store.opening import open_store
from delay_service.store.port import DelayStore, IdKind, IdState, Pending, StoreChanges

SMALL = RocksOptions(write_buffer_bytes=64 << 10, block_bytes=1 << 10, file_bytes=64 << 10)
MANY = 1 << 40  # more bytes than any test has


def uuid_of(number: int) -> bytes:
    return b"u" * 8 + number.to_bytes(8, "big")


def message(
    due_ms: int, offset: int, topic: str = "t", body: bytes = b"body", occurrence: int = 0
) -> Pending:
    return Pending(
        due_ms, offset, occurrence, topic, uuid_of(offset), '{"op":"add"}', b"m" * 16, 5, 1, b"tag", body
    )


def sent_by(sender: str, offset: int) -> Pending:
    """A message that an identity sent; its topic tries to look like another sender."""
    command = encode_command(DelayCommand("add", "", '","sender":"nobody', sender=sender))
    return message(50 + offset, offset)._replace(command=command)


def adding(messages: list[Pending]) -> StoreChanges:
    """Messages and their ids."""
    ids: dict[bytes, IdState | None] = {
        one.uuid: IdState(IdKind.PENDING, one.due_ms, one.offset) for one in messages
    }
    return StoreChanges(added=messages, ids=ids)


def in_memory(folder: Path) -> DelayStore:
    return MemoryDelayStore()


def in_rocks(folder: Path) -> DelayStore:
    return open_store(folder, 3, 7, SMALL)


STORES: dict[str, Callable[[Path], DelayStore]] = {"memory": in_memory, "rocks": in_rocks}
