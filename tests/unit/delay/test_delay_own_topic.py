"""Changes that state their topic: they apply to a waiting message of this topic, and to no other."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from backend.progress.ack_map import AckMap
from ddmq_common.delays.command import (
    ADD,
    ADDED,
    ALREADY_FIRED,
    CANCEL,
    CANCELLED,
    FIRE,
    ONCE,
    RESCHEDULE,
    UNKNOWN,
    DelayCommand,
    encode_command,
)
from ddmq_common.delivery import encode
from delay_service.core.commands import CommandRecord, DecisionContext
from delay_service.core.decider import decide_commands
from delay_service.store.memory_store import MemoryDelayStore

ID = "00000000-0000-4000-8000-000000000001"
DUE_MS, KEPT_MS = 10_000_000, 3_600_000
STEPS = st.lists(
    st.tuples(st.sampled_from((ADD, CANCEL, RESCHEDULE)), st.sampled_from(("mine", "theirs"))), max_size=8
)


class CommandStore:
    """Decides commands one by one, each against the store after the earlier ones."""

    def __init__(self) -> None:
        self.store = MemoryDelayStore()
        self.context = DecisionContext(self.store, AckMap(0), {}, KEPT_MS)
        self.offset = 0

    def decide(self, op: str, topic: str) -> int:
        """Return the outcome of a command that states its topic."""
        self.offset += 1
        command = DelayCommand(
            op, ID, topic, ONCE, DUE_MS, reply_queue=0, reply_id=self.offset, own_topic=True
        )
        record = CommandRecord(
            self.offset, command, UUID(ID).bytes, encode_command(command), bytes(16), 1, 0,
            encode(b"", b"x", b"", None),
        )  # fmt: skip
        decisions = decide_commands(self.context, [record], 1)
        self.store.write(decisions.changes)
        (reply,) = decisions.replies or [None]
        return ADDED if reply is None else reply.outcome.code


def test_a_foreign_change_does_nothing() -> None:
    shard = CommandStore()
    assert shard.decide(ADD, "mine") == ADDED
    assert [shard.decide(op, "theirs") for op in (CANCEL, RESCHEDULE, FIRE)] == [UNKNOWN] * 3
    assert shard.decide(CANCEL, "mine") == CANCELLED


def test_a_cancel_before_its_add_ends_the_add_of_its_own_topic_alone() -> None:
    shard = CommandStore()
    assert shard.decide(CANCEL, "theirs") == UNKNOWN
    assert shard.decide(ADD, "mine") == ADDED
    assert shard.decide(CANCEL, "mine") == CANCELLED
    other = CommandStore()
    assert other.decide(CANCEL, "mine") == UNKNOWN
    assert other.decide(ADD, "mine") == CANCELLED


@given(STEPS)
def test_no_change_of_theirs_alters_what_mine_get(steps: list[tuple[str, str]]) -> None:
    """One topic has the same outcomes without the changes that state another topic."""
    both, alone = CommandStore(), CommandStore()
    for op, topic in steps:
        if topic == "mine":
            assert both.decide(op, topic) == alone.decide(op, topic)
        elif op != ADD:
            assert both.decide(op, topic) in (UNKNOWN, CANCELLED, ALREADY_FIRED)
