"""Resetting offsets under connected clients that have no leases, and what getConsumeStats says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.records import Bounds, ProgressDelta, ProgressView, QueueRef
from ddmq.server.admin import offsets
from ddmq_common.errors import CallerError, FencedError
from proxy_consumer.config import SubscriptionDefaults
from tests.service.consumer.consumer_rig import FIRST, IDL, METHODS, ConsumerRig, result


def reset(rig: ConsumerRig, to: Any, queue: int | None = None, dry_run: bool = False) -> dict[str, Any]:
    done = offsets.reset(rig.backend, rig.clock, "G", "T", to, queue, dry_run)
    rig.settle()
    return done


def test_results_of_old_clients_from_before_the_reset_change_nothing(rig: ConsumerRig) -> None:
    rig.topic()
    rig.send(5)
    rig.subscribe()
    assert rig.pull().offsets == [0, 1, 2, 3, 4]
    reset(rig, "first")
    assert rig.submit(result([0, 1, 2])).result is True
    assert rig.progress().committed == 0
    assert rig.pull().offsets == [0, 1, 2, 3, 4]
    rig.submit(result([0, 1, 2]))
    assert rig.progress().committed == 3


def test_what_was_finished_above_the_new_offset_is_redelivered(rig: ConsumerRig) -> None:
    rig.topic()
    rig.send(8)
    rig.subscribe()
    rig.pull()
    rig.submit(result([0, 1, 4, 5]))
    (row,) = reset(rig, 1, dry_run=True)["queues"]
    assert row == {"queue": 0, "from": 2, "to": 1, "again": 3, "passed_over": 0}
    (row,) = reset(rig, "last", dry_run=True)["queues"]
    assert row == {"queue": 0, "from": 2, "to": 8, "again": 0, "passed_over": 4}
    (row,) = reset(rig, 5)["queues"]
    assert row == {"queue": 0, "from": 2, "to": 5, "again": 1, "passed_over": 2}
    assert rig.pull().offsets == [5, 6, 7]
    assert rig.progress().generation == 2


def test_one_queue_can_be_reset_alone(rig: ConsumerRig) -> None:
    rig.topic(queues=2)
    rig.send(3, queue=0)
    rig.send(3, queue=1)
    rig.subscribe()
    reset(rig, "last", queue=1)
    assert [rig.progress(queue=queue).committed for queue in (0, 1)] == [0, 3]
    with pytest.raises(
        CallerError, match=r"offset 9 is out of range; allowed: queue 0: 0 to 3, queue 1: 0 to 3"
    ):
        reset(rig, 9)


def test_a_reset_is_repeated_when_the_owner_changes_meanwhile(
    rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.topic()
    rig.send(3)
    rig.subscribe()
    looked = offsets.read_positions
    rounds: list[int] = []

    def stale(*args: Any) -> Any:
        views = looked(*args)
        rounds.append(1)
        if len(rounds) == 1:
            rig.wait(
                rig.backend.commit(
                    offsets.CommitBatch(
                        progress=[
                            ProgressDelta("G", views[0].queue, 0, views[0].view.generation + 1, reset_to=1)
                        ]
                    ),
                    rig.deadline(),
                )
            )
        return views

    monkeypatch.setattr(offsets, "read_positions", stale)
    (row,) = reset(rig, "last")["queues"]
    assert (len(rounds), row["from"], row["to"]) == (2, 1, 3)
    assert rig.progress().committed == 3


def test_giving_up_says_what_to_do(rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.ready()
    monkeypatch.setattr(offsets, "_commit", lambda *_: False)
    with pytest.raises(FencedError, match="run the reset of 'G' again"):
        reset(rig, "first")


@pytest.mark.parametrize("to", [None, "", "soon", -1, True, "2026-11-21T12:00", [1]])
def test_what_is_no_target(to: Any) -> None:
    with pytest.raises(CallerError, match="allowed: first, last, an offset"):
        offsets.target_of(to, 0)


@pytest.mark.parametrize(
    ("to", "target"),
    [
        ("5", ("offset", 5)),
        (5, ("offset", 5)),
        ("1700000000000", ("time", 1_700_000_000_000)),
        ("-1s", ("time", 999_000)),
        ("2026-11-21T12:00Z", ("time", 1_795_262_400_000)),
        ("last", ("last", 0)),
    ],
)
def test_targets(to: Any, target: tuple[str, int]) -> None:
    assert tuple(offsets.target_of(to, 1_000_000)) == target


def test_broadcasting_has_nothing_to_reset(rig: ConsumerRig) -> None:
    rig.ready(config=SubscriptionDefaults(model="broadcasting"))
    with pytest.raises(CallerError, match="every instance keeps its own progress"):
        reset(rig, "first")


# --- getConsumeStats


def stats(
    rig: ConsumerRig, group: bytes, topic: bytes | None
) -> dict[bytes, tuple[dict[bytes, int], dict[bytes, int]]]:
    request = IDL.ConsumeStatsRequest(group=group, topic=topic)
    call = rig.call("getConsumeStats", METHODS["getConsumeStats"].args[0](request=request))
    rig.settle(lambda: call.answered)
    assert all(each.group == group for each in call.result)
    return {each.topic: (each.consumeOffsets, each.produceOffsets) for each in call.result}


def test_consume_stats(rig: ConsumerRig) -> None:
    rig.topic(queues=2)
    rig.topic("U")
    rig.topic("V")
    rig.send(5)
    rig.send(2, topic="U")
    rig.subscribe()
    rig.subscribe(topic="U", config=FIRST)
    rig.subscribe(topic="absent", config=FIRST)
    rig.pull()
    rig.submit(result([0, 1, 3]))
    of_t = ({b"R_default_a_0": 2, b"R_default_a_1": 0}, {b"R_default_a_0": 5, b"R_default_a_1": 0})
    of_u = ({b"R_default_a_0": 0}, {b"R_default_a_0": 2})
    assert stats(rig, b"G", b"T") == {b"T": of_t}
    assert stats(rig, b"G", b"") == stats(rig, b"G", None) == {b"T": of_t, b"U": of_u}
    assert stats(rig, b"unknown", b"T") == stats(rig, b"unknown", b"") == {}
    assert stats(rig, b"G", b"V") == {}, "a topic that the group does not consume"
    assert stats(rig, b"G", b"unknown") == stats(rig, b"G", b"absent") == {}
    assert stats(rig, b"\xff", b"\xfe") == {}
    assert [group.name for group in rig.service.groups()] == ["G"], "asking makes nothing"


@given(
    st.integers(0, 12),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), max_size=6),
    st.integers(0, 40),
)
def test_the_plan_counts_redelivered_and_skipped_messages(
    at: int, ranges: list[tuple[int, int]], to: int
) -> None:
    finished = set(range(at)) | {offset for start, size in ranges for offset in range(start, start + size)}
    while at in finished:
        at += 1
    above = sorted(offset for offset in finished if offset > at)
    view = ProgressView(at, tuple((offset, offset + 1) for offset in above), {}, 0, 0)
    standing = offsets.Standing(QueueRef("T", 1, 0), view, Bounds(0, 40))
    row = offsets._plan_row(standing, to)
    assert row["again"] == len([offset for offset in finished if offset >= to])
    assert row["passed_over"] == len([offset for offset in range(to) if offset not in finished])
