"""A checked delay request as the command that the delay service gets. Pure; the wall clock is an argument.

Each function makes one command, with the id that its caller is told. Commands of old clients are of kinds
2, 3 and 4; kind 5, a schedule, is ours, and so are reschedule and fire now.
"""

from __future__ import annotations

from typing import NamedTuple

from ddmq_client.idl.codes import DelayAction, DelayType
from ddmq_common.delays.command import (
    ADD,
    CANCEL,
    FIRE,
    ONCE,
    RESCHEDULE,
    SCHEDULE,
    DelayCommand,
    Schedule,
)
from ddmq_common.delays.ids import EXPIRE_AFTER_S, DelayId, is_uuid, parse_delay_id, shard_of
from proxy_producer.core.delay_checks import DelayRequest, due_s

ANY_QUEUE = -2
EXPIRE_S_MAX = 9_999_999_999  # ten digits, as an id has; what lies beyond (the year 2286) is cut
_OPS = {DelayAction.CANCEL: CANCEL, DelayAction.RESCHEDULE: RESCHEDULE, DelayAction.FIRE: FIRE}


class Placed(NamedTuple):
    """A delay command, and the id that its caller gets: of the first occurrence, or the one that it named."""

    command: DelayCommand
    delay_id: bytes


def add_command(request: DelayRequest, topic: str, uuid: str, shards: int) -> Placed:
    """The command of an add of kinds 2, 3 and 4. `uuid`: the caller's, or one made for it."""
    second = due_s(request) or 0
    due_ms = second * 1_000 if request.due_ms is None else request.due_ms
    kind, shard = request.kind or ONCE, shard_of(uuid, shards)
    if kind == DelayType.DELAY:
        expire, interval, times = second + EXPIRE_AFTER_S, 0, 0
    else:
        expire = min(request.expire or 0, EXPIRE_S_MAX)
        interval, times = request.interval or 0, request.times or 0
    command = DelayCommand(ADD, uuid, topic, kind, due_ms, second, expire, interval, times, shard)
    return Placed(command, DelayId(second, kind, expire, times, 0, interval, shard, uuid).text().encode())


def schedule_command(
    schedule: Schedule, due_ms: int, topic: str, uuid: str, shards: int, place: tuple[int, int]
) -> Placed:
    """The command of a schedule whose first delivery is due at `due_ms`. `place`: (partitionId, hashId)."""
    shard, second = shard_of(uuid, shards), due_ms // 1_000
    command = DelayCommand(
        ADD, uuid, topic, SCHEDULE, due_ms, second, shard=shard,
        partition=place[0], hash_id=place[1], schedule=schedule,
    )  # fmt: skip
    return Placed(command, DelayId(second, SCHEDULE, 0, 0, 0, 0, shard, uuid).text().encode())


def changing_command(request: DelayRequest, topic: str, latest_s: int, shards: int) -> Placed:
    """The command of a cancel, a reschedule, a fire now, whose id was checked.

    It goes to the shard that the id names; to the one of `shards` that keeps the uuid, when the id is nothing
    else.

    Times in the id are the caller's to invent, and something may be kept until then: those beyond `latest_s`,
    which no add can have now, are cut.
    """
    found = parse_delay_id(request.delay_id)
    if found is None and is_uuid(request.delay_id):
        uuid = request.delay_id.decode()
        found = DelayId(0, ONCE, 0, 0, 0, 0, shard_of(uuid, shards), uuid)
    if found is None:
        raise ValueError(f"delay id {request.delay_id!r} was not checked")
    op = _OPS[DelayAction(request.action or 0)]
    due = 0 if op != RESCHEDULE else due_s(request) or 0
    due_ms = due * 1_000 if request.due_ms is None or not due else request.due_ms
    timestamp_s, expire_s = min(found.timestamp_s, latest_s), min(found.expire_s, latest_s)
    command = DelayCommand(
        op, found.uuid, topic, found.kind, due_ms, timestamp_s, expire_s, found.interval_s, found.times,
        found.shard,
    )  # fmt: skip
    return Placed(command, request.delay_id)


def relay_command(key: DelayId, topic: str, uuid: str, now_ms: int, place: tuple[int, int]) -> DelayCommand:
    """The command of a message that an old delay server sends under an occurrence's id as `key`: deliver it
    now, unless that was cancelled. `uuid` is the command's own, so that each occurrence is delivered.
    """
    return DelayCommand(
        ADD, uuid, topic, SCHEDULE, now_ms, now_ms // 1_000, shard=key.shard,
        partition=place[0], hash_id=place[1], schedule=Schedule(), unless_cancelled=key.uuid,
    )  # fmt: skip


def uuid_of(raw: bytes) -> str:
    """16 bytes as a uuid's 36 characters."""
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
