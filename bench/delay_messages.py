"""Pending messages for the delay store's benchmarks, as the service makes them of a plain send or an add."""

from __future__ import annotations

from random import Random

from ddmq_common.delays.command import DelayCommand, encode_command
from delay_service.store.port import IdKind, IdState, Pending, StoreChanges

BATCH = 1_000
TOPIC = "orders"
FIRST_DUE_MS, DUE_RANGE_MS = 1_700_000_000_000, 86_400_000
_MARK = "?" * 36
_ORDER = encode_command(
    DelayCommand("add", _MARK, TOPIC, 2, FIRST_DUE_MS, 1_700_000_000, 1_700_086_400)
).split(_MARK)


def messages(random: Random, first: int, count: int, body: int, due_ms: int | None = None) -> list[Pending]:
    """Due at any time of a day, or all at once; bodies are half noise, so that compression gains a bit."""
    pending = []
    noise, rest = random.randbytes(body // 2), bytes(body - body // 2 - 16)
    for offset in range(first, first + count):
        uuid = random.randbytes(16)
        due = due_ms if due_ms is not None else FIRST_DUE_MS + random.randrange(DUE_RANGE_MS)
        text = uuid.hex().join(_ORDER)
        pending.append(
            Pending(due, offset, 0, TOPIC, uuid, text, uuid, FIRST_DUE_MS, 0, b"tag", uuid + noise + rest)
        )
    return pending


def adding(batch: list[Pending]) -> StoreChanges:
    """As ingest writes them: each with its id."""
    return StoreChanges(
        added=batch,
        ids={one.uuid: IdState(IdKind.PENDING, one.due_ms, one.offset) for one in batch},
    )
