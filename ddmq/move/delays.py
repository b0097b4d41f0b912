"""Moves the pending delayed messages of a source, and the outcomes of finished ids, to the target.

This process owns the source's shards meanwhile, with a delay service that fires nothing. Its stores are
brought up to date from the log (on Kafka, they begin in an empty folder). Each pending message becomes an add
in the same shard of the target's %DELAY, with its own uuid, occurrence and due time, so that a cancel by any
of its ids finds it. Ids that fired or were cancelled follow as ID_OUTCOMES commands.

Every page is one commit, together with the position that was reached in the shard, so nothing is sent twice.
This requires that nothing changes at the source any more: from now on, delays belong to the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b

import gevent
import msgspec

from backend.records import CommitBatch, NewRecord, ProgressDelta, QueueRef, StoredRecord
from ddmq.move.context import (
    WAIT_S,
    MoveContext,
    MoveError,
    all_records,
    request_until_answered,
    views_of,
    wait_for_answer,
)
from ddmq.move.core.copies import CopyOrigin
from ddmq.move.progress import MoveProgress
from ddmq.server.delays.restore import FOREVER_MS, PAGE, PAGE_BYTES, command_record
from ddmq_common.delays.command import COMMAND_PROPERTY, ID_OUTCOMES, DelayCommand, encode_command
from ddmq_common.delivery import encode
from ddmq_common.errors import DamagedError, FencedError
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import DELAY_GROUP, DELAY_TOPIC, MOVED_PROPERTY
from ddmq_common.native_threads import in_thread
from delay_service.config import DelayConfig
from delay_service.context import ShardContext
from delay_service.core.fire_command import still_waiting
from delay_service.core.held_messages import plain_due_ms
from delay_service.core.id_outcomes import IdOutcome, encode_id_outcomes
from delay_service.service import DelayService
from delay_service.store.port import DueKey, IdKind, IdState, Pending, Scan, StoreOpener

IDS_PAGE = 1_000
POLL_INTERVAL_S = 0.05
SHARDS_WAIT_S = 15.0  # a shard that is not owned by then belongs to another process
_END = 1 << 64


class ShardProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress of moving a delay shard: the last pending message and the last id (hexadecimal) that were
    moved, and whether it is `done`. `moved`: the number of pending messages sent; `check`: the sum of their
    digests."""

    due_ms: int = -1
    offset: int = 0
    last_id: str = msgspec.field(default="", name="known")
    done: bool = False
    moved: int = 0
    check: int = 0


def read_shard_progress(progress: MoveProgress, context: MoveContext, shard: int) -> ShardProgress:
    """Read the recorded progress of a shard."""
    value = context.target.setting(progress.delay_key(shard))
    return ShardProgress() if value is None else msgspec.json.decode(value, type=ShardProgress)


class DelayMove:
    """Moves the pending delayed messages. `opener` opens the source's stores. `queues`: the number of queues
    of %DELAY on both sides."""

    def __init__(
        self, context: MoveContext, progress: MoveProgress, config: DelayConfig, opener: StoreOpener
    ) -> None:
        self._context = context
        self._progress = progress
        self._config = config
        self._opener = opener

    def run(self) -> int:
        """Move all pending delayed messages; return how many now wait at the target."""
        context = self._context
        source, target = (side.topic(DELAY_TOPIC) for side in (context.source, context.target))
        if source is None or target is None:
            return 0
        service = DelayService(
            context.source, self._config, Registry(), context.clock, self._opener, fires=False
        )
        try:
            service.start()
            self._wait_for_shards(service, source.queues)
            for queue in target.refs():
                shard = service.shards[queue.queue_id].context
                assert shard is not None
                self._copy_shard(queue, shard)
        finally:
            with suppress(TimeoutError):
                service.drain(context.deadline()).wait(WAIT_S)  # its stores are closed then
            service.close()
        return sum(
            read_shard_progress(self._progress, context, number).moved for number in range(source.queues)
        )

    def _wait_for_shards(self, service: DelayService, queues: int) -> None:
        """Wait until this process owns each shard and its store has every command. Raises MoveError if
        another
        process owns one."""
        context = self._context
        end, last_line = context.clock.monotonic() + SHARDS_WAIT_S, ""
        while not (len(service.shards) == queues and service.health().ready):
            if len(service.shards) < queues and context.clock.monotonic() > end:
                owners = wait_for_answer(context.source.holders(DELAY_GROUP, DELAY_TOPIC, context.deadline()))
                others = sorted(
                    {address for queue, address in owners.items() if queue.queue_id not in service.shards}
                )
                raise MoveError(
                    f"delays still fire at the source: {', '.join(filter(None, others)) or 'another process'}"
                    " holds shards; stop every server of the source"
                )
            lags = sum(max(lag, 0) for lag in service.lags().values())
            if lags and (line := f"taking in {lags:,} delay commands of the source") != last_line:
                context.print_line(last_line := line)
            gevent.sleep(POLL_INTERVAL_S)

    # --- one shard

    def _copy_shard(self, target: QueueRef, shard: ShardContext) -> None:
        shard_progress = read_shard_progress(self._progress, self._context, target.queue_id)
        if shard_progress.done:
            return
        origin = CopyOrigin(self._context.source_id, DELAY_TOPIC, target.queue_id)
        for page in self._read_pages(shard, shard_progress):
            records, outcomes, check = self._add_commands(page, shard, target, origin)
            records += self._outcome_records(outcomes, target)
            moved = len(records) - bool(outcomes)
            shard_progress = msgspec.structs.replace(
                shard_progress, due_ms=page[-1].due_ms, offset=page[-1].offset,
                moved=shard_progress.moved + moved, check=(shard_progress.check + check) % _END,
            )  # fmt: skip
            self._store_records(target, records, shard_progress)
            self._context.tally.copied += moved
        while ids := in_thread(shard.store.list_id_states, bytes.fromhex(shard_progress.last_id), IDS_PAGE):
            shard_progress = msgspec.structs.replace(shard_progress, last_id=ids[-1][0].hex())
            outcomes = [IdOutcome(*each) for each in ids if each[1].kind is not IdKind.PENDING]
            self._store_records(target, self._outcome_records(outcomes, target), shard_progress)
        self._store_records(target, [], msgspec.structs.replace(shard_progress, done=True))

    def _read_pages(self, shard: ShardContext, shard_progress: ShardProgress) -> Iterator[list[Pending]]:
        after = None if shard_progress.due_ms < 0 else DueKey(shard_progress.due_ms, shard_progress.offset)
        while page := in_thread(shard.store.scan, Scan(None, 0, FOREVER_MS, PAGE, after, PAGE_BYTES)):
            yield page
            after = page[-1].key

    def _add_commands(
        self, page: Iterable[Pending], shard: ShardContext, target: QueueRef, origin: CopyOrigin
    ) -> tuple[list[NewRecord], list[IdOutcome], int]:
        """Return the commands that add waiting messages at the target, the outcomes of ids that are finished,
        and the digest sum of the messages."""
        now_ms, config, tally = self._context.clock.wall_ms(), self._config, self._context.tally
        records: list[NewRecord] = []
        outcomes: list[IdOutcome] = []
        check = 0
        for message in page:
            if not self._context.scope.takes(message.topic):
                tally.passed["of other topics"] += 1
                continue
            waiting = still_waiting(message, shard.acks, now_ms, config.catch_up_max)
            if waiting is None:
                state = IdState(IdKind.FIRED, plain_due_ms(message.due_ms), 0, now_ms + config.kept_ms)
                outcomes.append(IdOutcome(message.uuid, state))
                continue
            try:
                record = command_record(waiting, 1)
            except DamagedError:
                tally.passed["delay that does not parse"] += 1
                self._context.print_line(
                    f"a delayed message for {message.topic} does not parse and stays behind"
                )
                continue
            record.queue_id = target.queue_id
            record.system = {**(record.system or {}), MOVED_PROPERTY: f"{origin.prefix}{message.offset}"}
            check += _digest_command(record.message_id, record.delivery, record.system[COMMAND_PROPERTY])
            records.append(record)
        return records, outcomes, check % _END

    def _outcome_records(self, outcomes: list[IdOutcome], target: QueueRef) -> list[NewRecord]:
        if not outcomes:
            return []
        command = encode_command(DelayCommand(ID_OUTCOMES, ""))
        body = encode(b"", encode_id_outcomes(outcomes), b"", None)
        message_id = blake2b(body, digest_size=16).digest()
        now_ms = self._context.clock.wall_ms()
        return [
            NewRecord(
                DELAY_TOPIC, target.queue_id, message_id, now_ms, body, system={COMMAND_PROPERTY: command}
            )
        ]

    def _store_records(
        self, target: QueueRef, records: list[NewRecord], shard_progress: ShardProgress
    ) -> None:
        context = self._context
        settings: dict[str, bytes | None] = {
            self._progress.delay_key(target.queue_id): msgspec.json.encode(shard_progress)
        }
        view = views_of(context, context.target, context.copied_group, [target])[0]
        fence = ProgressDelta(context.copied_group, target, context.epoch, view.generation)
        batch = CommitBatch(records=records, progress=(fence,), settings=settings)
        try:
            wait_for_answer(context.target.commit(batch, context.deadline()))
        except FencedError:
            raise MoveError("another `ddmq move` of the same source has taken over; this one ends") from None


# --- whether it is there


def find_delay_differences(context: MoveContext, progress: MoveProgress) -> list[str]:
    """Compare the moved messages in the target's %DELAY with the record of the move; empty if they agree."""
    target = context.target.topic(DELAY_TOPIC)
    differences = []
    for queue in [] if target is None else target.refs():
        shard_progress, origin = (
            read_shard_progress(progress, context, queue.queue_id),
            CopyOrigin(context.source_id, DELAY_TOPIC, queue.queue_id),
        )
        bounds = request_until_answered(context, lambda queue=queue: context.target.bounds([queue]))[0]  # type: ignore[misc]
        if bounds is None or not shard_progress.moved:
            continue
        count = check = 0
        for record in all_records(context, context.target, queue, bounds.min, bounds.next):
            if origin.offset_of(record.system.get(MOVED_PROPERTY, "")) >= 0:
                count += 1
                check += _of_stored(record)
        if (count, check % _END) != (shard_progress.moved, shard_progress.check):
            differences.append(
                f"delays of shard {queue.queue_id}: {shard_progress.moved:,} were moved "
                f"(checksum {shard_progress.check:016x}), "
                f"{count:,} are in the target ({check % _END:016x})"
            )
    return differences


def _of_stored(record: StoredRecord) -> int:
    return _digest_command(record.message_id, record.delivery, record.system.get(COMMAND_PROPERTY, ""))


def _digest_command(message_id: bytes, delivery: bytes, command: str) -> int:
    text = b"%b%b%b" % (message_id, command.encode(), delivery)
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
