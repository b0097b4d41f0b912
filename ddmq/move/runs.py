"""One run of `ddmq move`: what its modes do, in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from ddmq.move.context import MoveContext, MoveError
from ddmq.move.core.scope import AT_THE_END, groups_of
from ddmq.move.delays import DelayMove, find_delay_differences
from ddmq.move.finish import Finish
from ddmq.move.messages import TopicCopies
from ddmq.move.progress import COPYING, FINISHED, MoveProgress
from ddmq.move.verify import compare_queues
from delay_service.config import DelayConfig
from delay_service.store.port import StoreOpener

COPIED, VERIFIED, PLANNED = "copied", "verified", "planned"


class MoveReport(msgspec.Struct, frozen=True):
    """The result of a run or of a dry run, for people and programs. `remaining`: how many offsets are not
    copied yet, by topic."""

    did: str
    state: str
    topics: int
    groups: int
    copied: int = 0
    copied_bytes: int = 0
    passed: dict[str, int] = {}
    remaining: dict[str, int] = msgspec.field(default_factory=dict, name="left")
    queues_verified: int = 0
    messages_verified: int = 0
    differences: list[str] = msgspec.field(default_factory=list, name="faults")


class MoveRun:
    """One run of `ddmq move`. `name`: the source as people wrote it. `exclusive`: no other process can use
    the source."""

    def __init__(
        self,
        context: MoveContext,
        name: str,
        config: DelayConfig,
        opener: StoreOpener,
        *,
        exclusive: bool,
    ) -> None:
        self._context = context
        self._name = name
        self._progress = MoveProgress(context)
        self.messages = TopicCopies(context, self._progress)
        delays = DelayMove(context, self._progress, config, opener)
        self._finish = Finish(context, self._progress, self.messages, delays, exclusive)

    def plan_move(self) -> MoveReport:
        """Return the topics and messages that a move would copy, without writing anything. Raises MoveError
        for a move that is impossible."""
        pairs = self.messages.match_topics()
        move_state = self._progress.saved_state
        remaining = {}
        for name, pair in pairs.items():
            if name not in AT_THE_END and pair.target is None:
                bounds = self.messages.bounds(pair.source.refs())
                remaining[name] = sum(limits.next - limits.min for limits in bounds if limits is not None)
        state = "not begun" if move_state is None else move_state.state
        return self._build_report(PLANNED, state, len(pairs), remaining)

    def copy(self, stopped: Callable[[], bool] | None) -> MoveReport:
        """Copy the existing messages; with `stopped` also new ones, until it returns True."""
        self.begin()
        self.messages.prepare_targets()
        try:
            if stopped is None:
                self.messages.copy_round()
            else:
                self.messages.follow_source(stopped)
        except KeyboardInterrupt:  # each commit is whole: where it ended, the next run goes on
            self._context.print_line("interrupted")
        return self._build_report(
            COPIED, COPYING, len(self.messages.pairs), dict(self.messages.count_remaining())
        )

    def finish_move(self) -> MoveReport:
        """Do the last step of the move, and compare both sides."""
        if self.begin() == FINISHED:
            raise MoveError("this move is finished; --verify compares it again")
        self._finish.run()
        report = self._compare_sides()
        progress = self._finish.find_differences()
        return msgspec.structs.replace(report, did=FINISHED, differences=[*report.differences, *progress])

    def verify_copies(self) -> MoveReport:
        """Compare the copies so far with the source."""
        if self._progress.saved_state is None:
            raise MoveError("nothing was copied yet: this move has not begun")
        self.begin(allow_finished=True)
        self.messages.prepare_targets()
        return self._compare_sides()

    # ---

    def begin(self, *, allow_finished: bool = False) -> str:
        """Fence all other runs of this move and return the move's state. Raises MoveError if the move is
        finished, unless `allow_finished`."""
        move_state = self._progress.saved_state
        if move_state is not None and move_state.state == FINISHED and not allow_finished:
            raise MoveError("this move is finished; the source's copies are complete, --verify compares them")
        return self._progress.begin(self._name).state

    def _compare_sides(self) -> MoveReport:
        context, move_state = self._context, self._progress.saved_state
        context.print_line("comparing …")
        state = COPYING if move_state is None else move_state.state
        comparison = compare_queues(context, self.messages.copiers.values(), context.scope.takes_record)
        differences, queues, messages = list(comparison.differences), comparison.queues, comparison.messages
        if state == FINISHED:
            waiting = [copier for copier, _ in self._finish.level_copiers()]
            levels = compare_queues(context, waiting, context.scope.takes_record)
            differences += levels.differences + find_delay_differences(context, self._progress)
            queues, messages = queues + levels.queues, messages + levels.messages
        report = self._build_report(
            VERIFIED, state, len(self.messages.pairs), dict(self.messages.count_remaining())
        )
        return msgspec.structs.replace(
            report, queues_verified=queues, messages_verified=messages, differences=differences
        )

    def _build_report(self, did: str, state: str, topics: int, remaining: dict[str, int]) -> MoveReport:
        tally, scope = self._context.tally, self._context.scope
        groups = groups_of(scope.select_settings(self._context.source.settings("")))
        count = len({group for names in groups.values() for group in names})
        passed = {why: number for why, number in Counter(tally.passed).items() if number}
        counts = {topic: number for topic, number in remaining.items() if number}
        return MoveReport(did, state, topics, count, tally.copied, tally.copied_bytes, passed, counts)
