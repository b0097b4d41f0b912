"""A delay request: whether it is legal, and the delay command that it becomes. Pure.

The checks of sendDelaySync come after 11, 13 and 18, in wire order. Add: timestamp 33, type 31, times 35,
expire 36, interval 37, base 38, then the uuid 30. Cancel: the id's shape 30, its type 31, its shard 34. Any
other action: 32. A command comes with the id that its caller is told.

Callers with fields of ours have four more actions (reschedule, fire now, hold, release) and one more type,
the schedule, which is kind 5 (docs/wire-additions.md); for all others these are as unknown as ever.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from ddmq_client.idl.codes import Code, DelayAction, DelayType
from ddmq_common.delays.command import (
    ADD,
    CANCEL,
    EXPIRE_AFTER_S,
    FIRE,
    HOLD,
    ONCE,
    RELEASE,
    RESCHEDULE,
    SCHEDULE,
    DelayCommand,
    DelayId,
    Schedule,
    is_uuid,
    parse_delay_id,
    shard_of,
)
from ddmq_common.delays.levels import duration_text
from ddmq_common.delays.schedules import ScheduleLimits, find_schedule_error
from proxy_producer.core.rejections import SendRejection, build_illegal_rejection, build_rejection, quote_text

TIMESTAMP_S_MIN = 1_000_000_000
INTERVAL_S_MIN = 3
BASE_MIN = 2
OLD_KINDS = (DelayType.DELAY, DelayType.LOOP, DelayType.EXPONENTIAL_LOOP)
ALL_KINDS = (*OLD_KINDS, DelayType.SCHEDULE)

_ID_ALLOWED = (
    "allowed: timestamp-type-expire-times-timed-interval-shard-uuid, as the add was answered"
    " (10 digits, 1 digit, 10 digits, numbers, lower-case uuid 8-4-4-4-12)"
)


class DelayRequest(NamedTuple):
    """The fields of a delay request: when, how often and which message; None = absent.

    Times are epoch seconds.

    `due_ms` is set if the caller gave milliseconds in any field. `schedule`: of an add of type 5; only its
    strings have been decoded. `fresh`: an add whose uuid the proxy generated, so nobody can know it yet.
    """

    action: int | None
    delay_id: bytes
    timestamp: int | None
    kind: int | None
    interval: int | None
    expire: int | None
    times: int | None
    uuid: bytes
    due_ms: int | None
    extended_client: bool = False
    schedule: Schedule | None = None
    fresh: bool = False


def check_delay_request(
    request: DelayRequest, limits: ScheduleLimits, shards: int, now_ms: int
) -> SendRejection | None:
    """Return the rejection of the first invalid field, or None. `shards`: the number of delay shards."""
    if request.action == DelayAction.ADD:
        if request.schedule is not None:
            return _check_schedule(request, request.schedule, limits, now_ms)
        return _check_add(request, limits, now_ms)
    if request.action == DelayAction.CANCEL:
        return check_delay_id(request.delay_id, shards, extended_client=request.extended_client)
    if request.extended_client and request.action in _OPS:
        rejection = check_delay_id(request.delay_id, shards, extended_client=True)
        if rejection is None and request.action == DelayAction.RESCHEDULE:
            rejection = check_timestamp(request, limits, now_ms)
        return rejection
    return build_rejection(
        Code.DELAY_ACTION_UNKNOWN,
        "delay_action",
        f"action is {_show_number(request.action)}",
        "allowed: 1 (add), 2 (cancel)",
    )


def echoed_id(code: Code, delay_id: bytes) -> bytes:
    """Return field 3 of a rejection: the id for codes 30, 31 and 34, else empty."""
    return delay_id if code in (Code.DELAY_ID_MALFORMED, Code.DELAY_TYPE_UNKNOWN, Code.DELAY_SHARD) else b""


def _check_add(request: DelayRequest, limits: ScheduleLimits, now_ms: int) -> SendRejection | None:
    rejection = check_timestamp(request, limits, now_ms)
    if rejection is None and request.kind not in OLD_KINDS:
        rejection = _build_kind_rejection(f"dmsgtype is {_show_number(request.kind)}")
    return rejection or _check_times(request, limits) or _check_loop(request) or check_uuid(request.uuid)


def _check_schedule(
    request: DelayRequest, schedule: Schedule, limits: ScheduleLimits, now_ms: int
) -> SendRejection | None:
    rejection = None if request.due_ms is None else check_timestamp(request, limits, now_ms)
    if rejection is None:
        error = find_schedule_error(schedule, limits, now_ms)
        if error is not None:
            what, _, allowed = error.partition("; ")
            rejection = build_illegal_rejection("delay_schedule", what, allowed)
    return rejection or check_uuid(request.uuid)


def due_s(request: DelayRequest) -> int | None:
    """Return when the first occurrence is due, in whole epoch seconds.

    `due_ms` takes precedence over the timestamp.
    """
    return request.timestamp if request.due_ms is None else request.due_ms // 1_000


def check_timestamp(request: DelayRequest, limits: ScheduleLimits, now_ms: int) -> SendRejection | None:
    """Return code 33 for a due time outside the limits, else None."""
    due = due_s(request)
    delay_s_max = limits.delay_ms_max // 1_000
    latest = now_ms // 1_000 + delay_s_max
    if due is not None and TIMESTAMP_S_MIN <= due <= latest:
        return None
    if request.due_ms is not None:
        allowed = f"allowed: {_show_time(TIMESTAMP_S_MIN * 1_000)} to {_show_time(latest * 1_000)}"
        what = f"the due time is {_show_time(request.due_ms)}"
        allowed += f", which is {duration_text(delay_s_max * 1_000)} from now"
        return build_rejection(Code.DELAY_TIMESTAMP, "delay_timestamp", what, allowed)
    return build_rejection(
        Code.DELAY_TIMESTAMP,
        "delay_timestamp",
        f"timestamp is {_show_number(request.timestamp)}",
        f"allowed: epoch seconds from {TIMESTAMP_S_MIN} to {latest}, which is {delay_s_max} s"
        f" ({delay_s_max / 86_400:.6g} days) from now",
    )


def _show_time(wall_ms: int) -> str:
    """Format epoch milliseconds in UTC; as a plain number if it is outside the calendar."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=wall_ms)
    except OverflowError:
        return f"epoch millisecond {wall_ms}"
    return moment.isoformat(timespec="milliseconds" if wall_ms % 1_000 else "seconds").replace("+00:00", "Z")


def _build_kind_rejection(what: str) -> SendRejection:
    return build_rejection(
        Code.DELAY_TYPE_UNKNOWN, "delay_type", what, "allowed: 2 (once), 3 (loop), 4 (exponential loop)"
    )


def _check_times(request: DelayRequest, limits: ScheduleLimits) -> SendRejection | None:
    times = request.times or 0
    if request.kind == DelayType.DELAY:
        if times == 0:
            return None
        allowed = "allowed: 0 for type 2"
    elif 0 < times <= limits.occurrences_max:
        return None
    else:
        allowed = f"allowed: 1 to {limits.occurrences_max} for types 3 and 4"
    return build_rejection(
        Code.DELAY_TIMES, "delay_times", f"times is {_show_number(request.times)}", allowed
    )


def _check_loop(request: DelayRequest) -> SendRejection | None:
    if request.kind == DelayType.DELAY:
        return None
    due, interval = due_s(request) or 0, request.interval or 0
    if (request.expire or 0) <= due:
        return build_rejection(
            Code.DELAY_EXPIRE,
            "delay_expire",
            f"expire is {_show_number(request.expire)}",
            f"allowed for types 3 and 4: after the timestamp, which is {due}",
        )
    if request.kind == DelayType.LOOP and interval < INTERVAL_S_MIN:
        return build_rejection(
            Code.DELAY_INTERVAL,
            "delay_interval",
            f"interval is {_show_number(request.interval)}",
            f"allowed for type 3: {INTERVAL_S_MIN} s or more",
        )
    if request.kind == DelayType.EXPONENTIAL_LOOP and interval < BASE_MIN:
        return build_rejection(
            Code.DELAY_BASE,
            "delay_base",
            f"interval (the base) is {_show_number(request.interval)}",
            f"allowed for type 4: {BASE_MIN} or more",
        )
    return None


def check_uuid(uuid: bytes) -> SendRejection | None:
    """Return a rejection with code 30 if the uuid of an add request is malformed, else None."""
    if not uuid or is_uuid(uuid):
        return None
    return build_rejection(
        Code.DELAY_ID_MALFORMED,
        "delay_id",
        f"uuid is {quote_text(uuid)}",
        "allowed: 8-4-4-4-12 digits and lower-case letters, or none: then the server makes one",
    )


def check_delay_id(delay_id: bytes, shards: int, *, extended_client: bool) -> SendRejection | None:
    """Return a rejection with code 30, 31 or 34 if the id cannot name a message, else None.

    With `extended_client`, ids of schedules and plain uuids are valid, too.
    """
    if extended_client and is_uuid(delay_id):
        return None
    name = "the delay id" if extended_client else "uniqDelayMsgId"
    parsed_id = parse_delay_id(delay_id)
    if parsed_id is None:
        what = f"{name} is {quote_text(delay_id, 120)}"
        return build_rejection(Code.DELAY_ID_MALFORMED, "delay_id", what, _ID_ALLOWED)
    if parsed_id.kind not in (ALL_KINDS if extended_client else OLD_KINDS):
        return _build_kind_rejection(f"the type in {name} is {parsed_id.kind}")
    if not 0 <= parsed_id.shard < shards:
        return build_rejection(
            Code.DELAY_SHARD,
            "delay_shard",
            f"the shard in {name} is {parsed_id.shard}",
            f"allowed: 0 to {shards - 1}",
        )
    return None


def _show_number(value: int | None) -> str:
    return "absent" if value is None else str(value)


ANY_QUEUE = -2
EXPIRE_S_MAX = 9_999_999_999  # ten digits, as an id has; what lies beyond (the year 2286) is cut
_OPS = {
    DelayAction.CANCEL: CANCEL, DelayAction.RESCHEDULE: RESCHEDULE, DelayAction.FIRE: FIRE,
    DelayAction.HOLD: HOLD, DelayAction.RELEASE: RELEASE,
}  # fmt: skip


class CommandWithId(NamedTuple):
    """A delay command and the id for its caller: that of the first occurrence, or the id that the caller
    named."""

    command: DelayCommand
    delay_id: bytes


def add_command(request: DelayRequest, topic: str, uuid: str, shards: int) -> CommandWithId:
    """Build the command of an add of kind 2, 3 or 4. `uuid`: from the caller, or generated for it."""
    second = due_s(request) or 0
    due_ms = second * 1_000 if request.due_ms is None else request.due_ms
    kind, shard = request.kind or ONCE, shard_of(uuid, shards)
    if kind == DelayType.DELAY:
        expire, interval, times = second + EXPIRE_AFTER_S, 0, 0
    else:
        expire = min(request.expire or 0, EXPIRE_S_MAX)
        interval, times = request.interval or 0, request.times or 0
    command = DelayCommand(ADD, uuid, topic, kind, due_ms, second, expire, interval, times, shard)
    return CommandWithId(
        command, DelayId(second, kind, expire, times, 0, interval, shard, uuid).text().encode()
    )


def schedule_command(
    schedule: Schedule, due_ms: int, topic: str, uuid: str, shards: int, queue_choice: tuple[int, int]
) -> DelayCommand:
    """Build the command of a schedule that is first due at `due_ms`.

    `queue_choice`: (partitionId, hashId).
    """
    return DelayCommand(
        ADD, uuid, topic, SCHEDULE, due_ms, due_ms // 1_000, shard=shard_of(uuid, shards),
        partition=queue_choice[0], hash_id=queue_choice[1], schedule=schedule,
    )  # fmt: skip


def schedule_id(command: DelayCommand) -> bytes:
    """Return the id of the first occurrence of a schedule."""
    delay_id = DelayId(command.timestamp_s, SCHEDULE, 0, 0, 0, 0, command.shard, command.uuid)
    return delay_id.text().encode()


def changing_command(request: DelayRequest, topic: str, latest_s: int, shards: int) -> CommandWithId:
    """Build the command of a change of a delayed message (not an add), whose id has been checked.

    The id names the shard; for an id that is only a uuid the shard follows from the uuid. Times in the id
    that are later than `latest_s` are lowered to it: no add can have them, and the command is kept until
    then.
    """
    parsed_id = parse_delay_id(request.delay_id)
    if parsed_id is None and is_uuid(request.delay_id):
        uuid = request.delay_id.decode()
        parsed_id = DelayId(0, ONCE, 0, 0, 0, 0, shard_of(uuid, shards), uuid)
    if parsed_id is None:
        raise ValueError(f"delay id {request.delay_id!r} was not checked")
    op = _OPS[DelayAction(request.action or 0)]
    due = 0 if op != RESCHEDULE else due_s(request) or 0
    due_ms = due * 1_000 if request.due_ms is None or not due else request.due_ms
    timestamp_s = min(parsed_id.timestamp_s, latest_s)
    expire_s = min(parsed_id.expire_s, latest_s)
    command = DelayCommand(
        op, parsed_id.uuid, topic, parsed_id.kind, due_ms, timestamp_s, expire_s, parsed_id.interval_s,
        parsed_id.times, parsed_id.shard,
    )  # fmt: skip
    return CommandWithId(command, request.delay_id)


def relay_command(
    key: DelayId, topic: str, uuid: str, now_ms: int, queue_choice: tuple[int, int]
) -> DelayCommand:
    """Build the command that delivers a message of an old delay server now, unless it was cancelled.

    `key`: the occurrence's id, under which the server sends it. `uuid`: a new one, so that each occurrence is
    delivered.
    """
    return DelayCommand(
        ADD, uuid, topic, SCHEDULE, now_ms, now_ms // 1_000, shard=key.shard,
        partition=queue_choice[0], hash_id=queue_choice[1], schedule=Schedule(), unless_cancelled=key.uuid,
    )  # fmt: skip


def uuid_of(raw: bytes) -> str:
    """Format 16 bytes as the 36 characters of a uuid."""
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
