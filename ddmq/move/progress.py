"""The record of a move in the target: settings `move/SOURCE…`, from which the next run resumes.

    move/SOURCE                 JSON: what the source is called, when the move began, its state, steps done
    move/SOURCE/run             the number of the newest run: the epoch under which it copies
    move/SOURCE/topic/NAME      JSON: the incarnations of the topic at the source and at the target
    move/SOURCE/levels          decimal: the queue of the schedule topic that takes the first level
    move/SOURCE/delay/SHARD     how far the delays of a shard were moved (delays.py)

The settings stay when a move is finished, so that it is not begun again by mistake.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from backend.records import CommitBatch, TopicInfo
from ddmq.move.context import MoveContext, MoveError, wait_for_answer
from ddmq.move.core.scope import MOVE_SETTINGS_PREFIX
from ddmq_common.errors import FencedError

COPYING, FINISHING, FINISHED = "copying", "finishing", "finished"
_TRIES = 20


class MoveState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a move, as stored in its target. `patterns`: those of the topics that it includes."""

    source: str
    began_ms: int
    state: str = COPYING
    done: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()


class TopicIncarnations(msgspec.Struct, frozen=True):
    """The incarnation of a topic at the source, and that at the target."""

    source: int
    target: int


class MoveProgress:
    """The progress of one move (run number, finished topics …), stored in the settings of the target server
    so that a later run can continue the move."""

    def __init__(self, context: MoveContext) -> None:
        self._context = context
        self._key = f"{MOVE_SETTINGS_PREFIX}{context.source_id}"

    @property
    def saved_state(self) -> MoveState | None:
        """The recorded state of the move; None before the first run."""
        value = self._context.target.setting(self._key)
        return None if value is None else msgspec.json.decode(value, type=MoveState)

    def begin(self, source: str) -> MoveState:
        """Give this run a number above those of all earlier runs, and store the move's state. Raises
        MoveError if the move began with other topics."""
        context, patterns = self._context, self._context.scope.patterns
        for _ in range(_TRIES):
            before = context.target.setting(f"{self._key}/run")
            number = int(before or b"0") + 1
            move_state = self.saved_state or MoveState(source, context.clock.wall_ms(), patterns=patterns)
            if move_state.patterns != patterns:
                flags = " ".join(f"--topics {one!r}" for one in move_state.patterns) or "no --topics"
                raise MoveError(f"this move began with {flags}; give the same again")
            claim = f"{self._key}/claim/{number}"  # two runs that begin at once: the second is refused
            old = f"{self._key}/claim/{number - 1}"
            settings = {
                claim: b"1",
                f"{self._key}/run": b"%d" % number,
                self._key: msgspec.json.encode(move_state),
            }
            if context.target.setting(old) is not None:
                settings[old] = None  # type: ignore[assignment]
            try:
                wait_for_answer(
                    context.target.commit(CommitBatch(settings=settings, absent=(claim,)), context.deadline())
                )
            except FencedError:
                continue
            context.epoch = number
            return move_state
        raise MoveError("other runs of `ddmq move` of the same source keep beginning; end them")

    def save_state(self, state: str, *steps: str) -> None:
        """Store the state of the move, together with further `steps` that are done."""
        move_state = self.saved_state
        assert move_state is not None
        steps_done = move_state.done + tuple(step for step in steps if step not in move_state.done)
        fresh = msgspec.structs.replace(move_state, state=state, done=steps_done)
        self.put({self._key: msgspec.json.encode(fresh)})

    def list_topics(self) -> Mapping[str, TopicIncarnations]:
        """Return the topics whose copy has begun, by name."""
        prefix = f"{self._key}/topic/"
        settings = self._context.target.settings(prefix)
        return {
            key.removeprefix(prefix): msgspec.json.decode(value, type=TopicIncarnations)
            for key, value in settings.items()
        }

    def save_topic(self, source: TopicInfo, target: TopicInfo) -> None:
        """Store that this topic of the source is copied into that topic of the target."""
        value = msgspec.json.encode(TopicIncarnations(source.incarnation, target.incarnation))
        self.put({f"{self._key}/topic/{source.name}": value})

    def delay_key(self, shard: int) -> str:
        """Return the key of the setting that stores the progress of moving a delay shard."""
        return f"{self._key}/delay/{shard}"

    @property
    def levels_key(self) -> str:
        """The key of the setting that stores the number of the first target queue for the source's delay
        levels."""
        return f"{self._key}/levels"

    def put(self, settings: Mapping[str, bytes | None]) -> None:
        """Store these settings in the target."""
        context = self._context
        wait_for_answer(context.target.commit(CommitBatch(settings=settings), context.deadline()))
