"""One run of `ddmq move`: what its modes do, in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from ddmq.move.context import MoveContext, MoveError
from ddmq.move.core.scope import AT_THE_END, groups_of
from ddmq.move.delays import DelayMove, delay_faults
from ddmq.move.finish import Finish
from ddmq.move.messages import TopicCopies
from ddmq.move.notes import COPYING, FINISHED, MoveNotes
from ddmq.move.verify import verify
from delay_service.config import DelayConfig
from delay_service.store.port import StoreOpener

COPIED, VERIFIED, PLANNED = "copied", "verified", "planned"


class MoveSaid(msgspec.Struct, frozen=True):
    """The result of a run, or of a dry run, for people and programs. `left`: offsets not copied yet, by
    topic."""

    did: str
    state: str
    topics: int
    groups: int
    copied: int = 0
    copied_bytes: int = 0
    passed: dict[str, int] = {}
    left: dict[str, int] = {}
    queues_verified: int = 0
    messages_verified: int = 0
    faults: list[str] = []


class MoveRun:
    """`name`: what people call the source. `exclusive`: nobody else can be at it."""

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
        self._notes = MoveNotes(context)
        self.messages = TopicCopies(context, self._notes)
        delays = DelayMove(context, self._notes, config, opener)
        self._finish = Finish(context, self._notes, self.messages, delays, exclusive)

    def plan(self) -> MoveSaid:
        """Return the messages that would be copied; write nothing. Raises MoveError for a move that is
        impossible."""
        pairs = self.messages.look()
        note = self._notes.note
        left = {}
        for name, pair in pairs.items():
            if name not in AT_THE_END and pair.target is None:
                bounds = self.messages.bounds(pair.source.refs())
                left[name] = sum(limits.next - limits.min for limits in bounds if limits is not None)
        return self._said(PLANNED, "not begun" if note is None else note.state, len(pairs), left)

    def copy(self, stopped: Callable[[], bool] | None) -> MoveSaid:
        """Copy the existing messages; with `stopped` also new ones, until it returns True."""
        self.begin()
        self.messages.prepare()
        try:
            if stopped is None:
                self.messages.copy_round()
            else:
                self.messages.follow(stopped)
        except KeyboardInterrupt:  # each commit is whole: where it ended, the next run goes on
            self._context.say("interrupted")
        return self._said(COPIED, COPYING, len(self.messages.pairs), dict(self.messages.left()))

    def finish(self) -> MoveSaid:
        """The last step, and whether all is there."""
        if self.begin() == FINISHED:
            raise MoveError("this move is finished; --verify compares it again")
        self._finish.run()
        said = self._verified()
        progress = self._finish.faults()
        return msgspec.structs.replace(said, did=FINISHED, faults=[*said.faults, *progress])

    def verify(self) -> MoveSaid:
        """Compare what was copied so far."""
        if self._notes.note is None:
            raise MoveError("nothing was copied yet: this move has not begun")
        self.begin(again=True)
        self.messages.prepare()
        return self._verified()

    # ---

    def begin(self, *, again: bool = False) -> str:
        """Take over from other runs of this move; returns its state. Raises MoveError when it is finished."""
        note = self._notes.note
        if note is not None and note.state == FINISHED and not again:
            raise MoveError("this move is finished; the source's copies are complete, --verify compares them")
        return self._notes.begin(self._name).state

    def _verified(self) -> MoveSaid:
        context, note = self._context, self._notes.note
        context.say("comparing …")
        state = COPYING if note is None else note.state
        found = verify(context, self.messages.copiers.values(), context.scope.takes_record)
        faults, queues, messages = list(found.faults), found.queues, found.messages
        if state == FINISHED:
            waiting = [copier for copier, _ in self._finish.level_copiers()]
            levels = verify(context, waiting, context.scope.takes_record)
            faults += levels.faults + delay_faults(context, self._notes)
            queues, messages = queues + levels.queues, messages + levels.messages
        said = self._said(VERIFIED, state, len(self.messages.pairs), dict(self.messages.left()))
        return msgspec.structs.replace(
            said, queues_verified=queues, messages_verified=messages, faults=faults
        )

    def _said(self, did: str, state: str, topics: int, left: dict[str, int]) -> MoveSaid:
        tally, scope = self._context.tally, self._context.scope
        groups = groups_of(scope.settings(self._context.source.settings("")))
        count = len({group for names in groups.values() for group in names})
        passed = {why: number for why, number in Counter(tally.passed).items() if number}
        there = {topic: number for topic, number in left.items() if number}
        return MoveSaid(did, state, topics, count, tally.copied, tally.copied_bytes, passed, there)
