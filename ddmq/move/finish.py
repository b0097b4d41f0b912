"""The last step of a move, while nobody sends, consumes or fires at the source any more.

In this order, each step again where it was cut short and none twice:

1. the messages that are left           4. retries and levels that wait for their time
2. settings: groups, subscriptions, …   5. pending delays, and outcomes of ids
3. progress of the groups               6. the settings of topics; the move is finished

Progress comes after all messages and before anything that a group could be handed. A group's unfinished
messages, and only these, come to it again at the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from backend.port import Backend
from backend.progress.ack_map import AckMap
from backend.records import CommitBatch, ProgressDelta, ProgressView, QueueRef, TopicInfo
from ddmq.move.context import (
    MoveContext,
    MoveError,
    read_run,
    request_until_answered,
    views_of,
    wait_for_answer,
)
from ddmq.move.copier import QueueCopier
from ddmq.move.core.offset_map import MappedProgress, OffsetMap, lowest_unfinished
from ddmq.move.core.scope import groups_of, readers_of
from ddmq.move.delays import DelayMove
from ddmq.move.messages import TopicCopies, at_once
from ddmq.move.progress import FINISHED, FINISHING, MoveProgress
from ddmq.server.admin.transactions import open_halves
from ddmq_common.errors import FencedError
from ddmq_common.names import (
    DELAY_GROUP,
    DELAY_TOPIC,
    HALF_TOPIC,
    LEVELS_GROUP,
    MOVED_PROPERTY,
    SCHEDULE_TOPIC,
    TRANSACTION_GROUP,
)

SETTINGS_AT_ONCE = 500
SHOWN_MAX = 5
OPEN_LOOKED_AT = 10_000  # half messages of transactions at the source


class ProgressComparison(NamedTuple):
    """A group's progress on one queue of the target: `expected` is what it must be, `actual` what it is."""

    group: str
    queue: QueueRef
    expected: MappedProgress
    actual: ProgressView


class Finish:
    """The last step of a move. `exclusive`: no other process can use the source, because this one has locked
    its directory."""

    def __init__(
        self,
        context: MoveContext,
        progress: MoveProgress,
        messages: TopicCopies,
        delays: DelayMove,
        exclusive: bool,
    ) -> None:
        self._context = context
        self._progress = progress
        self._messages = messages
        self._delays = delays
        self._exclusive = exclusive
        self._groups: Mapping[str, list[str]] = {}

    def run(self) -> None:
        """Do the last step. Raises MoveError if clients or servers still use the source, or already use the
        target."""
        self._refuse_beside_others()
        self._progress.save_state(FINISHING)
        self._messages.prepare_targets()
        while self._messages.copy_round():
            pass
        for step, work in self._list_steps():
            move_state = self._progress.saved_state
            if move_state is None or step not in move_state.done:
                self._context.print_line(f"{step} …")
                work()
                self._progress.save_state(FINISHING, step)
        self._progress.save_state(FINISHED)

    def _list_steps(self) -> list[tuple[str, Callable[[], object]]]:
        return [
            ("settings", self._copy_settings), ("progress", self._copy_progress),
            ("levels", self._copy_levels),
            ("delays", self._delays.run), ("topics", self._messages.settle_topics),
        ]  # fmt: skip

    # --- nobody else

    def _refuse_beside_others(self) -> None:
        context = self._context
        groups = groups_of(context.scope.select_settings(context.source.settings("")))
        reading = sorted((group, topic) for topic, names in groups.items() for group in names)
        if not self._exclusive:
            firing = [(LEVELS_GROUP, SCHEDULE_TOPIC), (DELAY_GROUP, DELAY_TOPIC)]
            firing.append((TRANSACTION_GROUP, HALF_TOPIC))
            busy = self._find_busy(context.source, [*reading, *firing])
            if busy:
                raise MoveError(f"the source is still at work: {busy}; stop all its servers, then finish")
        opened = {each.half.mark.id for each in islice(open_halves(context.source), OPEN_LOOKED_AT)}
        if opened:
            raise MoveError(
                f"{len(opened)} transactions are open at the source, {min(opened)} among them, and are not"
                " moved: commit them or roll them back (`ddmq tx list` at the source), then finish"
            )
        busy = self._find_busy(context.target, reading)
        if busy:
            raise MoveError(
                f"consumers are at the target before their progress is: {busy}; stop them until the move"
                " is finished"
            )

    def _find_busy(self, backend: Backend, pairs: Sequence[tuple[str, str]]) -> str:
        busy = []
        for group, topic in pairs:
            if backend.topic(topic) is None:
                continue
            owners = wait_for_answer(backend.holders(group, topic, self._context.deadline()))
            if owners:
                where = ", ".join(sorted(set(owners.values()) - {""})) or "a process"
                busy.append(f"{where} holds {topic} for {group}")
        more = f" and {len(busy) - SHOWN_MAX} more" if len(busy) > SHOWN_MAX else ""
        return "; ".join(busy[:SHOWN_MAX]) + more

    # --- settings

    def _copy_settings(self) -> None:
        context = self._context
        required = context.scope.select_settings(context.source.settings(""))
        present = context.target.settings("")
        changes = [(key, value) for key, value in sorted(required.items()) if present.get(key) != value]
        for at in range(0, len(changes), SETTINGS_AT_ONCE):
            self._progress.put(dict(changes[at : at + SETTINGS_AT_ONCE]))

    # --- progress

    def _copy_progress(self) -> None:
        at_once(self._store_progress, list(self._messages.copiers))

    def _store_progress(self, source: QueueRef) -> None:
        context = self._context
        deltas = [
            delta for comparison in self.compare_progress(source) for delta in _progress_deltas(comparison)
        ]
        if deltas:
            try:
                wait_for_answer(context.target.commit(CommitBatch(progress=deltas), context.deadline()))
            except FencedError as error:
                raise MoveError(
                    f"consumers are at the target before their progress is: {error}; stop them until the"
                    " move is finished"
                ) from error

    def compare_progress(self, source: QueueRef) -> list[ProgressComparison]:
        """Return the progress that the groups must have on one queue, from their progress at the source."""
        context, copier = self._context, self._messages.copiers[source]
        groups = groups_of(context.scope.select_settings(context.source.settings("")))
        readers = readers_of(source.topic, groups)
        views = {group: views_of(context, context.source, group, [source])[0] for group in readers}
        active = {group: view for group, view in views.items() if view.committed is not None}
        lowest = lowest_unfinished(active.values())
        if lowest is None:
            return []
        mapped = self._build_map(copier, lowest)
        return [
            ProgressComparison(group, copier.target, mapped.progress(view),
                       views_of(context, context.target, group, [copier.target])[0])
            for group, view in active.items()
        ]  # fmt: skip

    def _build_map(self, copier: QueueCopier, lowest: int) -> OffsetMap:
        """Map the target's queue from the first offset that may be unfinished."""
        context = self._context
        pure = copier.scan_pure()
        offset_map = OffsetMap(pure if lowest >= copier.position else self._copy_at(copier, lowest, pure))
        at, at_end = offset_map.base, False
        while not at_end:
            run = read_run(context, context.target, copier.target, at)
            for record in run.records:
                offset_map.add(record.offset, copier.origin.offset_of(record.system.get(MOVED_PROPERTY, "")))
            at, at_end = run.next_offset, run.at_end
        return offset_map

    def _copy_at(self, copier: QueueCopier, source_offset: int, pure: int) -> int:
        """Return the target offset below which all copies come from source offsets below `source_offset`,
        found by binary search, which reads one record per step. All records below `pure` are copies."""
        context = self._context
        limits = request_until_answered(context, lambda: context.target.bounds([copier.target]))[0]
        low, high = min(0 if limits is None else limits.min, pure), pure
        while low < high:
            middle = (low + high) // 2
            records = read_run(context, context.target, copier.target, middle, 1).records
            first = next((one for one in records if one.offset < high), None)
            reference = "" if first is None else first.system.get(MOVED_PROPERTY, "")
            if first is None or copier.origin.offset_of(reference) >= source_offset:
                high = middle
            else:
                low = first.offset + 1
        return low

    # --- levels

    def _copy_levels(self) -> None:
        """Copy the messages that wait in the delay levels. Copies never come behind the target's own
        messages, because those may be due later."""
        for copier, end in self.level_copiers():
            copier.copy(end)

    def level_copiers(self) -> list[tuple[QueueCopier, int]]:
        """Return a copier for each queue of the delay levels, with the source offset at which it must stop.
        Copiers skip messages that have fired."""
        context, messages = self._context, self._messages
        source, target = (side.topic(SCHEDULE_TOPIC) for side in (context.source, context.target))
        if source is None or target is None:
            return []
        views = views_of(context, context.source, LEVELS_GROUP, source.refs())
        bounds = messages.bounds(source.refs())
        into = self._level_targets(source, target)
        copiers = messages.copiers_of(zip(source.refs(), into, strict=True))
        result = []
        for copier, view, limits in zip(copiers, views, bounds, strict=True):
            if limits is not None:
                acks = AckMap(view.committed or 0)
                acks.finish(view.finished)
                copier.skip(acks)
                result.append((copier, limits.next))
        return result

    def _level_targets(self, source: TopicInfo, target: TopicInfo) -> list[QueueRef]:
        """Return the target's queues for the messages of the levels.

        These are the levels' own queues if they have never been used, else as many additional queues. A level
        scheduler empties additional queues like those of levels that were removed from the configuration.
        """
        context = self._context
        key = self._progress.levels_key
        value = context.target.setting(key)
        if value is None:
            limits = request_until_answered(context, lambda: context.target.bounds(target.refs()))
            fires = wait_for_answer(context.target.holders(LEVELS_GROUP, SCHEDULE_TOPIC, context.deadline()))
            used = fires or any(one is not None and one.next for one in limits)
            value = b"%d" % (target.queues if used else 0)
            self._progress.put({key: value})
        first = int(value)
        queues = first + source.queues
        if target.queues < queues:
            grown = replace(target, queues=queues)
            target = wait_for_answer(context.target.put_topic(grown, context.deadline()))
        return target.refs()[first:queues]

    # --- whether it is there

    def find_differences(self) -> list[str]:
        """Return a line for each difference between the expected progress and the target's; empty if there is
        none."""
        differences = []
        for source in self._messages.copiers:
            for group, queue, expected, actual in self.compare_progress(source):
                if not expected.stands_in(actual):
                    differences.append(
                        f"progress of {group} on {queue.topic} queue {queue.queue_id}: "
                        f"committed {actual.committed}, {len(actual.finished)} ranges finished, "
                        f"{len(actual.attempts)} tried; wanted "
                        f"{expected.committed}, {len(expected.finished)}, {len(expected.attempts)}"
                    )
        return differences


def _progress_deltas(comparison: ProgressComparison) -> list[ProgressDelta]:
    """Return the changes that give a group its progress at the target. If there is different progress
    already, they start a new generation."""
    group, queue, expected, actual = comparison
    if expected.stands_in(actual):
        return []
    generation, deltas = actual.generation, list[ProgressDelta]()
    if actual.committed is not None or actual.attempts:
        generation += 1
        deltas.append(ProgressDelta(group, queue, actual.epoch, generation, reset_to=expected.committed))
    below = ((0, expected.committed),) if expected.committed else ()
    deltas.append(
        ProgressDelta(group, queue, actual.epoch, generation, below + expected.finished, expected.attempts)
    )
    return deltas
