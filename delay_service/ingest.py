"""Ingests the commands of one shard: from the inner topic into the store.

Read → decide and write to the store, one bounded run a step → flush in a native thread → one commit of the
progress of both groups and of the outcomes that callers wait for. The first two continue while a flush and
its commit are under way; commands that are not durable yet are bounded, and at the bound reading stops.
Rules:
* When many commands arrive the next read waits a little for more of them. A single command never waits, nor
  do those behind one whose outcome a caller waits for.
* Commands that the store already had when it was opened are read again only for their outcomes.
* A command about a message whose commit is under way waits, and everything behind it, until `resume`.
* Where the store is a cache of rows (waiting/rows.py) the commit has those of all ids that the commands were
  about, as the store has them. A message whose row is not committed is not fired: its row would come last.
* A commit that is refused for its outcomes is made without them; their callers have been told "pending".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from backend import internal_topics as dead
from backend.ownership.reader import QueueReader, ReadAnswer
from backend.records import NewRecord
from backend.traces import TraceWriter
from ddmq_common.delays.command import ADD, COMMAND_PROPERTY
from ddmq_common.errors import CallerError
from ddmq_common.event_loop import current_loop
from ddmq_common.hub_timer import spawn_later
from ddmq_common.names import DELAY_DLQ_TOPIC
from ddmq_common.native_threads import off_hub
from ddmq_common.trace.events import TraceKind
from ddmq_common.trace.sampling import is_sampled
from delay_service.context import ShardContext
from delay_service.core import decider
from delay_service.core.commands import CommandDecisions, CommandRecord, OutcomeReply, command_of
from delay_service.core.decider import INGESTED
from delay_service.due.backend import CLAIM_ERRORS, UNREADABLE, commit_due
from delay_service.due.service import Alarm
from delay_service.fire import FireLoop
from delay_service.waiting.rows import values_after, values_in

log = logging.getLogger("ddmq.delay")
WAIT_S = 60.0  # how long one wait for data stands before it is armed again
ROWS_BYTES_MAX = 4 << 20  # of rows that are not committed; then nothing more is taken in
RUN_MAX = 256  # commands in one step on the hub
BUSY = 4  # commands in one read: the next one then begins …
LINGER_S = 0.01  # … so much later than it could, for more commands to share a write, a flush and a commit


class UnflushedCommands:
    """Commands that are written to the store but not flushed, and the progress that they make."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.commands = 0
        self.replies: list[OutcomeReply] = []
        self.done: list[int] = []
        self.dead: list[CommandRecord] = []
        self.rows: dict[bytes, bytes] = {}

    def add(self, decisions: CommandDecisions, end: int) -> None:
        self.end = end
        self.commands += decisions.commands
        self.replies += decisions.replies
        self.done += decisions.done
        self.dead += decisions.dead


class Ingest:
    """Ingests the commands of one shard into its store.

    `position`: the offset of the next command. Below `stored_to` the store has all commands. `caught_up`: the
    position at which `on_caught_up` is called, once.
    """

    def __init__(
        self,
        context: ShardContext,
        fire: FireLoop,
        alarm: Alarm,
        position: int,
        stored_to: int,
        caught_up: int,
        on_caught_up: Callable[[], None],
    ) -> None:
        self._context = context
        self._service = context.service
        self._fire = fire
        self._alarm = alarm
        self._loop: Any = current_loop()
        self.position = position
        self._stored_to = stored_to
        self._caught_up = caught_up
        self._on_caught_up: Callable[[], None] | None = on_caught_up
        self._commands: list[CommandRecord] = []
        self._end = position  # of what was read
        self._unflushed = UnflushedCommands(position)
        self.committed = position  # commands below it are in the store and in the log's progress
        self._reader = QueueReader(
            context.service.backend,
            context.queue,
            partial(context.run_safely, "read", self._on_read),
            partial(context.run_safely, "wait", self._on_data),
        )
        self._busy = self._lingering = self._short = False  # short: the last read took what there was
        self._stepping = self._flushing = self._stopped = False
        self._pause_s = self._pause_min = self._service.config.pause_ms_min / 1e3

    @property
    def is_idle(self) -> bool:
        """Return whether no flush and no commit is in flight."""
        return not self._flushing

    def stop(self) -> None:
        """Ingest no more commands; a flush and commit in flight still finish. May be called twice."""
        self._stopped = True
        self._alarm.stop()
        self._reader.stop()

    def resume(self) -> None:
        """Schedule the next step, because a reason to wait may be over."""
        if not (self._stepping or self._stopped):
            self._stepping = True
            self._loop.run_callback(self._run_step)

    def _run_step(self) -> None:
        self._stepping = False
        if not self._stopped and self._context.running:
            self._context.run_safely("take in", self._begin_next)

    def _begin_next(self) -> None:
        ready = self._unflushed
        if (
            ready.commands >= self._service.config.ingest_unflushed_max
            or self._context.uncommitted_rows.gathered_bytes >= ROWS_BYTES_MAX
        ):
            return
        behind = bool(self._commands) or self.position < self._end
        if behind and self._context.awaits_capacity(True, self._alarm, self.resume):
            return
        if self._commands:
            self._decide_run()
        elif behind:
            self._apply_decisions(CommandDecisions())
        elif not (self._reader.reading or self._reader.waiting or self._lingering):
            self._report_caught_up()
            if self._short:
                self._wait_for_data()
            else:
                self._read()

    # --- reading

    def _read(self) -> None:
        self._short = False
        config = self._service.config
        self._reader.read(self._end, config.ingest_count, config.ingest_bytes)

    def _on_read(self, read: ReadAnswer) -> None:
        records = [] if read.batch is None else read.batch.carried(COMMAND_PROPERTY)
        missing = read.expected - len(records)
        if missing > 0:
            self._service.counts.lost["missing"].value += missing
            log.error("%d delay commands are missing from the log behind offset %d", missing, read.start)
        if read.error is not None:
            self._service.counts.count_failure("read", read.error)
            log.warning("delay commands cannot be read, tried again: %s", read.error)
            self._alarm.once(self._next_pause(), self.resume)
        elif read.oldest is not None:
            self._service.counts.lost["expired"].value += read.oldest - read.start
            log.error("%d delay commands are gone from the log", read.oldest - read.start)
            self._end = read.oldest
            self.resume()
        else:
            self._pause_s = self._pause_min
            self._on_commands(read, [command_of(record) for record in records])

    def _on_commands(self, read: ReadAnswer, commands: list[CommandRecord]) -> None:
        self._end = read.next_offset
        self._commands = commands
        if commands:
            self._busy = len(commands) >= BUSY
            self._short = read.next_offset - read.start < self._service.config.ingest_count
        if read.at_end and not self._commands and self.position == self._end:
            self._report_caught_up()
            self._wait_for_data()
        else:
            self.resume()

    def _wait_for_data(self) -> None:
        self._reader.wait(self._end, self._service.clock.monotonic() + WAIT_S)

    def _on_data(self, arrived: bool, error: Exception | None) -> None:
        if error is not None:
            self._service.counts.count_failure("wait", error)
            self._alarm.once(self._next_pause(), self.resume)
        elif self._busy:
            self._lingering = True
            self._alarm.once(LINGER_S, self._end_linger)
        elif self._context.running:
            self._read()

    def _end_linger(self) -> None:
        self._lingering = self._short = False
        self.resume()

    def _next_pause(self) -> float:
        pause, self._pause_s = self._pause_s, min(self._pause_s * 2, self._service.config.pause_ms_max / 1e3)
        return pause

    # --- deciding

    def _decide_run(self) -> None:
        is_replay = self.position < self._stored_to
        run = self._commands[:RUN_MAX]
        if is_replay:
            run = [command for command in run if command.offset < self._stored_to] or run
            is_replay = run[0].offset < self._stored_to
        decisions, now_ms = self._context.decisions, self._service.clock.wall_ms()
        self._apply_decisions(
            (decider.replay_commands if is_replay else decider.decide_commands)(decisions, run, now_ms)
        )

    def _apply_decisions(self, decisions: CommandDecisions) -> None:
        rest = self._commands[decisions.commands :]
        end = rest[0].offset if rest else self._end
        if end == self.position:
            return  # the first one waits for a commit; `go` comes when that has ended
        if end > self._stored_to:
            if end >= self._context.decisions.position_from:
                decisions.changes.meta[INGESTED] = b"%d" % end
            if not self._context.write(decisions.changes, decisions.unrecorded):
                return
            if decisions.changes.added:
                self._fire.wake_at(min(message.due_ms for message in decisions.changes.added))
        ingested, self._commands, self.position = self._commands[: decisions.commands], rest, end
        traces = self._service.traces
        if traces is not None and traces.limits:
            trace_ingested(traces, ingested)
        if self._context.has_rows:
            self._context.uncommitted_rows.add(self._changed_rows(ingested, decisions))
        for fire_now in decisions.awaited_fires:
            self._fire.await_outcome(fire_now)
        if decisions.replies or decisions.awaited_fires:
            self._busy = False
        self._service.counts.commands.add(decisions.tally)
        self._unflushed.add(decisions, end)
        self._unflushed.replies += self._fire.answer_overtaken(decisions.done)
        self._flush()
        self._report_caught_up()
        self.resume()

    def _changed_rows(self, commands: list[CommandRecord], decisions: CommandDecisions) -> dict[bytes, bytes]:
        rows, context = values_after(decisions.changes), self._context
        others = {command.uuid for command in commands if command.request is not None} - rows.keys()
        if others:  # nothing new about these, unless an owner before us did not live to commit it
            busy = {message.uuid for message in context.due_scans.busy.values()}
            rows |= values_in(context.store, list(others - busy))
        return rows

    def _report_caught_up(self) -> None:
        if self._on_caught_up is not None and self.position >= self._caught_up:
            callback, self._on_caught_up = self._on_caught_up, None
            callback()

    # --- making it durable

    def _flush(self) -> None:
        if self._flushing or self._unflushed.end == self._unflushed.start:
            return
        self._flushing = True
        ready, self._unflushed = self._unflushed, UnflushedCommands(self._unflushed.end)
        ready.rows = self._context.uncommitted_rows.begin_commit()
        off_hub(self._context.store.flush, lambda _, error: self._on_flushed(ready, error))

    def _on_flushed(self, ready: UnflushedCommands, error: Exception | None) -> None:
        if error is None:
            self._run_last_step("commit", self._commit, ready)
        else:
            self._run_last_step("flush", _raise_error, error)

    def _run_last_step(self, what: str, call: Callable[..., object], *arguments: object) -> None:
        """Run a step that belongs to a commit in flight.

        If it fails, give the shard up and end the commit.
        """
        if not self._context.run_safely(what, call, *arguments):
            self._flushing = False
            self._context.on_commit_end()

    def _commit(self, ready: UnflushedCommands) -> None:
        context, service = self._context, self._service
        wall_ms = service.clock.wall_ms()
        records = service.outcome_records(ready.replies, wall_ms)
        records += [_dead_letter(command, wall_ms) for command in ready.dead]
        records += context.row_records(ready.rows, wall_ms)
        progress = [context.ingest_progress(ready.start, ready.end)]
        if ready.done or context.has_rows:
            progress.append(context.fired_progress(ready.done, []))
        on_done = partial(self._run_last_step, "commit", self._on_committed, ready)
        dead_topic = DELAY_DLQ_TOPIC if ready.dead else ""
        commit_due(service.backend, dead_topic, records, progress, service.deadline(), on_done)

    def _on_committed(self, ready: UnflushedCommands, error: Exception | None) -> None:
        context = self._context
        if error is None:
            self._flushing, self.committed = False, ready.end
            context.uncommitted_rows.end_commit()
            context.finish_offsets(ready.done)
            self._fire.on_rows_committed()
            self._service.counts.dead[UNREADABLE].value += len(ready.dead)
            self._flush()
        elif isinstance(error, CLAIM_ERRORS) or not context.running:
            self._flushing = False
            context.give_up("commit", error)
        else:
            self._retry_commit(ready, error)
            return
        context.on_commit_end()

    def _retry_commit(self, ready: UnflushedCommands, error: Exception) -> None:
        self._service.counts.count_failure("commit", error)
        log.warning("what was taken in cannot be committed, tried again: %s", error)
        if isinstance(error, CallerError) and ready.replies:
            self._service.counts.replies_dropped["refused"].value += len(ready.replies)
            ready.replies = []
        spawn_later(self._next_pause(), self._run_last_step, "commit", self._commit, ready)


def _raise_error(error: Exception) -> None:
    raise error


def _dead_letter(command: CommandRecord, wall_ms: int) -> NewRecord:
    """Build the dead-letter record of a command that cannot be parsed."""
    facts = {dead.REASON: UNREADABLE, dead.TIME: str(wall_ms)}
    return dead.dead_record(DELAY_DLQ_TOPIC, command, facts, {})


def trace_ingested(traces: TraceWriter, commands: list[CommandRecord]) -> None:
    """Trace the messages of traced topics that the store has now."""
    for command in commands:
        request = command.request
        if request is None or request.op != ADD or request.topic not in traces.limits:
            continue
        if is_sampled(command.message_id, traces.limits[request.topic]):
            traces.add(
                command.message_id, TraceKind.INGESTED, "", {"due_ms": request.at_ms or request.due_ms}
            )


def ingested_offset(text: bytes | None) -> int | None:
    """Parse the named value INGESTED: the offset up to which the store has commands."""
    return int(text) if text is not None and text.isdigit() else None
