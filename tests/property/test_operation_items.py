"""Operations on delayed messages and on keys against a model: only what was shown, in the shown version."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.completion import Completion, succeeded
from backend.records import QueueRef
from ddmq.server.admin.operations.delays import HELD, HELD_BEFORE, HELD_ITSELF, NOT_HELD, REJECTED
from ddmq.server.http.routing import AdminRequest, Text
from ddmq_common.errors import CallerError, TryLaterError
from proxy_consumer.groups.blocked_keys import BlockedKey
from proxy_consumer.groups.ordering import KeyOutcome
from tests.support.operated_items import OperationUnderTest

# --- delays


@dataclass(frozen=True)
class WaitingMessage:
    """A delayed message of the model. `repeats`: another delivery follows each one. `held`: by itself."""

    due_ms: int
    topic: str
    occurrence: int = 0
    repeats: bool = False
    state: str = "pending"
    held: bool = False

    def fired(self) -> WaitingMessage:
        if self.repeats:
            return replace(self, due_ms=self.due_ms + 7, occurrence=self.occurrence + 1)
        return replace(self, state="fired")


class DelayModel:
    """A delay service: the part of the admin API that operations use. Ids are numbers as text. `held`: the
    delays of topic t are held."""

    def __init__(self) -> None:
        self.rows: dict[str, WaitingMessage] = {}
        self.held = False
        self.commands: list[tuple[str, WaitingMessage]] = []  # of the operation: id and version before

    def add(self, message: WaitingMessage) -> None:
        self.rows[str(len(self.rows))] = message

    def waiting(self, topic: str, start: int, end: int) -> dict[str, WaitingMessage]:
        return {
            each: row
            for each, row in self.rows.items()
            if row.state == "pending" and row.topic == topic and start <= row.due_ms < end
        }

    def change(self, number: int, action: str, due_ms: int) -> None:
        """A change by others."""
        delay_id = str(number % len(self.rows))
        row = self.rows[delay_id]
        if row.state == "pending":
            changes = {
                "cancel": replace(row, state="cancelled"),
                "fire": row if row.held else row.fired(),
                "move": replace(row, due_ms=due_ms),
                "hold": replace(row, held=True),
                "release": replace(row, held=False),
            }
            self.rows[delay_id] = changes[action]

    # --- as the admin API

    def fetch_message(self, delay_id: str) -> dict[str, Any]:
        row = self.rows[delay_id]
        return {
            "state": row.state, "due_ms": row.due_ms, "occurrence": row.occurrence, "topic": row.topic,
            "held": row.held,
        }  # fmt: skip

    def allows_due_ms(self, due_ms: int) -> bool:
        return True

    def is_held(self, topic: str) -> bool:
        return self.held and topic == "t"

    def list_messages(self, request: AdminRequest) -> Any:
        query = request.query
        rows = self.waiting(query.topic, query.from_ms, query.to_ms)
        at = int(query.after or "0")
        page = list(rows.items())[at : at + 2]
        messages = [
            {"id": each, "due_ms": row.due_ms, "occurrence": row.occurrence, "born_ms": 1, "topic": row.topic,
             "held": row.held}
            for each, row in page
        ]  # fmt: skip
        more = str(at + 2) if at + 2 < len(rows) else None
        held = {"t": 1} if self.held else {}
        scope = {"orders_waiting": 0, "elsewhere": [], "not_open": [], "held": held}
        return {"messages": messages, "next": more} | scope

    def answer_anywhere(self, request: AdminRequest, act: Any) -> Any:
        delay_id, body = request.path["id"], request.body
        row = self.rows[delay_id]
        self.commands.append((delay_id, row))
        assert not (body.action == "fire" and (row.held or self.is_held(row.topic)))
        if row.state != "pending":
            return {"outcome": row.state}
        changes = {
            "cancel": replace(row, state="cancelled"),
            "fire": row.fired(),
            "reschedule": replace(row, due_ms=body.due_ms or 0),
            "hold": replace(row, held=True),
            "release": replace(row, held=False),
        }
        self.rows[delay_id] = changes[body.action]
        return {"outcome": OUTCOMES[body.action]}


OUTCOMES = {
    "cancel": "cancelled", "fire": "fired", "reschedule": "rescheduled", "hold": "held",
    "release": "released",
}  # fmt: skip
DUE = st.integers(1, 40)
MESSAGES = st.builds(WaitingMessage, DUE, st.sampled_from("tu"), repeats=st.booleans(), held=st.booleans())
CHANGES = st.tuples(st.integers(0, 30), st.sampled_from(["cancel", "fire", "move", "hold", "release"]), DUE)
HAPPENINGS = st.lists(
    st.one_of(MESSAGES, CHANGES, st.sampled_from(["batch", "crash", "crash in batch", "hold or release"])),
    max_size=14,
)
ACTIONS = st.sampled_from(
    [("cancel", {}), ("fire", {}), ("reschedule", {"shift_ms": 5}), ("reschedule", {"shift_ms": -3}),
     ("reschedule", {"due_ms": 99}), ("hold", {}), ("release", {})]
)  # fmt: skip


def find_obstacle(action: str, row: WaitingMessage, *, topic_held: bool) -> str:
    """Return why an operation does not change a message as it is now; "" if it does."""
    if action == "fire" and topic_held:
        return HELD
    if row.held:
        return {"fire": HELD_ITSELF, "hold": HELD_BEFORE}.get(action, "")
    return NOT_HELD if action == "release" else ""


@given(st.lists(MESSAGES, min_size=1, max_size=12), ACTIONS, DUE, DUE, st.booleans(), HAPPENINGS)
def test_delayed_messages_are_changed_in_the_version_that_was_shown(
    messages: list[WaitingMessage],
    action: tuple[str, dict[str, int]],
    start: int,
    length: int,
    held: bool,
    happenings: list[Any],
) -> None:
    model = DelayModel()
    for message in messages:
        model.add(message)
    model.held = held
    work = OperationUnderTest(delays=model, calls=model)
    shown = model.waiting("t", start, start + length)
    name, options = action
    chosen = {"topic": "t", "from_ms": start, "to_ms": start + length}
    work.make_plan("delays", name, chosen, **options)
    obstacles = {each: find_obstacle(name, row, topic_held=held) for each, row in shown.items()}
    changeable = {each for each, obstacle in obstacles.items() if not obstacle}
    assert (work.plan["counted"], work.plan["exact"]) == (len(changeable), True)
    assert work.plan["skipped"] == Counter(each for each in obstacles.values() if each)
    run, crashes, changes = work.load(), 0, 0
    for happening in happenings:
        if happening == "batch":
            run.run_batch()
        elif happening == "crash":
            run = work.load()
        elif happening == "crash in batch":
            run, crashes = work.crash_in_batch(), crashes + 1
        elif happening == "hold or release":
            model.held = not model.held
            changes += name == "fire"
        elif isinstance(happening, WaitingMessage):
            model.add(happening)
        else:
            model.change(*happening)
            changes += 1
    while not run.is_over:
        run.run_batch()
    commanded = Counter(delay_id for delay_id, _ in model.commands)
    assert commanded.keys() <= changeable, "nothing that was not shown, or shown as skipped"
    for delay_id, before in model.commands:
        version = shown[delay_id]
        again = name == "cancel" and before.occurrence > version.occurrence  # of a repeating message
        flag_only = replace(before, held=version.held) == version
        assert again or (flag_only and not find_obstacle(name, before, topic_held=False))
    row = work.show()
    assert (row["state"], row["remaining"]) == ("done", 0)
    assert row["changed"] + sum(row["skipped"].values()) == len(shown)
    if not changes:
        assert commanded == dict.fromkeys(changeable, 1), "all of it, once"
        assert crashes or row["changed"] == row["counted"]


class LimitedDelayModel(DelayModel):
    """A delay service that allows due times up to `latest_ms`. `is_remote`: it runs in another process."""

    latest_ms = 99
    is_remote = False

    def allows_due_ms(self, due_ms: int) -> bool:
        return self.is_remote or due_ms <= self.latest_ms

    def answer_anywhere(self, request: AdminRequest, act: Any) -> Any:
        if request.body.due_ms <= self.latest_ms:
            return super().answer_anywhere(request, act)
        if self.is_remote:
            return Text("application/json", b'{"error": "the due time is 51"}', 400)
        raise CallerError("the due time is 51")


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_message_whose_new_due_time_is_not_allowed_any_more_is_skipped(is_remote: bool) -> None:
    model = LimitedDelayModel()
    model.is_remote = is_remote
    for due_ms in (10, 20, 46, 30, 49):
        model.add(WaitingMessage(due_ms, "t"))
    work = OperationUnderTest(delays=model, calls=model)
    work.make_plan("delays", "reschedule", {"topic": "t", "from_ms": 0, "to_ms": 99}, shift_ms=5)
    model.latest_ms = 50
    run = work.load()
    while not run.is_over:
        run.run_batch()
    row = work.show()
    assert (row["state"], row["changed"], row["skipped"]) == ("done", 3, {REJECTED: 2})
    assert sorted(message.due_ms for message in model.rows.values()) == [15, 25, 35, 46, 49]


def test_a_plan_does_not_count_messages_whose_new_due_time_is_not_allowed() -> None:
    model = LimitedDelayModel()
    model.latest_ms = 50
    for due_ms in (10, 20, 46, 30, 49):
        model.add(WaitingMessage(due_ms, "t"))
    work = OperationUnderTest(delays=model, calls=model)
    work.make_plan("delays", "reschedule", {"topic": "t", "from_ms": 0, "to_ms": 99}, shift_ms=5)
    assert (work.plan["counted"], work.plan["skipped"]) == (3, {REJECTED: 2})
    assert [row["due_ms"] for row in work.plan["sample"]] == [10, 20, 30]
    run = work.load()
    while not run.is_over:
        run.run_batch()
    assert (work.show()["changed"], len(model.commands)) == (3, 3)


class ClosedShardModel(DelayModel):
    """A delay service in which one shard is not open at first: the second message cannot be looked up."""

    is_open = False

    def fetch_message(self, delay_id: str) -> dict[str, Any]:
        if not self.is_open and self.rows[delay_id].due_ms == 20:
            raise TryLaterError("shard 3 is not open yet")
        return super().fetch_message(delay_id)


def test_a_batch_with_an_error_is_carried_out_once_and_counted_whole() -> None:
    model = ClosedShardModel()
    for due_ms in (10, 20, 30):
        model.add(WaitingMessage(due_ms, "t"))
    work = OperationUnderTest(delays=model, calls=model)
    work.make_plan("delays", "cancel", {"topic": "t", "from_ms": 0, "to_ms": 99})
    run = work.load()
    for _ in range(2):
        with pytest.raises(TryLaterError, match="not open yet"):
            run.run_batch()
        assert len(model.commands) == 2
    model.is_open = True
    while not run.is_over:
        run.run_batch()
    row = work.show()
    assert (row["state"], row["changed"], row["skipped"], len(model.commands)) == ("done", 3, {}, 3)


# --- keys


class KeyModel:
    """A group whose keys are chains of offsets; the first one of each is blocked. A consumer proxy with it,
    as far as operations use one."""

    order_keys = frozenset({"KEY"})

    def __init__(self, lengths: list[int]) -> None:
        self.chains = {f'"k{number}"': list(range(length)) for number, length in enumerate(lengths)}
        self.parked_keys: set[str] = set()
        self.acted: list[tuple[str, int]] = []

    def head(self, key: str) -> int | None:
        chain = self.chains[key]
        return chain[0] if chain else None

    def advance(self, number: int) -> None:
        """The first message of a key is acknowledged."""
        key = f'"k{number % len(self.chains)}"'
        del self.chains[key][:1]

    # --- as GroupOrdering and ConsumerService

    def find_group(self, name: str) -> Any:
        return SimpleNamespace(name=name) if name == "g" else None

    def load_order_keys(self, group: str, *, hold: bool = False) -> Completion[Any]:
        return succeeded(self)

    def single_chain_queues(self) -> dict[QueueRef, str]:
        return {}

    def blocked_keys(self, limit: int) -> list[BlockedKey]:
        return [row for key in self.chains for row in self.describe_heads(key)]

    def describe_heads(self, key: str) -> list[BlockedKey]:
        head = self.head(key)
        state = "parked" if key in self.parked_keys else "retrying"
        return [] if head is None else [BlockedKey(key, "t", 0, head, 1, 1, state, "no address", 0, False)]

    def _act(self, key: str, outcome: str) -> Completion[list[KeyOutcome]]:
        (row,) = self.describe_heads(key)
        self.acted.append((key, row.offset))
        return succeeded([KeyOutcome(row, outcome)])

    def park(self, key: str) -> Completion[list[KeyOutcome]]:
        self.parked_keys.add(key)
        return self._act(key, "parked")

    def skip(self, key: str) -> Completion[list[KeyOutcome]]:
        answer = self._act(key, "dead letter")
        del self.chains[key][:1]
        return answer

    def replay(self, key: str) -> Completion[list[KeyOutcome]]:
        self.parked_keys.discard(key)
        return self._act(key, "replayed")


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=9),
    st.sampled_from(["park", "skip"]),
    st.lists(
        st.one_of(st.integers(0, 8), st.sampled_from(["batch", "crash", "crash in batch"])), max_size=12
    ),
)
def test_keys_are_changed_while_their_first_message_is_the_shown_one(
    lengths: list[int], action: str, happenings: list[Any]
) -> None:
    model = KeyModel(lengths)
    work = OperationUnderTest(consumer=cast(Any, model))
    shown = {key: head for key in model.chains if (head := model.head(key)) is not None}
    work.make_plan("keys", action, {"group": "g", "text": "address", "error": "no address"})
    assert (work.plan["counted"], work.plan["exact"]) == (len(shown), True)
    run, crashes, advances = work.load(), 0, 0
    for happening in happenings:
        if happening == "batch":
            run.run_batch()
        elif happening == "crash":
            run = work.load()
        elif happening == "crash in batch":
            run, crashes = work.crash_in_batch(), crashes + 1
        else:
            model.advance(happening)
            advances += 1
    while not run.is_over:
        run.run_batch()
    acted = Counter(model.acted)
    assert acted.keys() <= set(shown.items()), "only heads that were shown"
    assert set(acted.values()) <= {1}, "each at most once"
    row = work.show()
    assert (row["state"], row["remaining"]) == ("done", 0)
    assert row["changed"] + sum(row["skipped"].values()) == len(shown)
    if not advances:
        assert acted.keys() == set(shown.items())
    if not (advances or crashes):
        assert row["changed"] == len(shown)
