"""Servers that kill themselves at named boundaries of commits: a short run, and what each boundary is.

The long ones: `python -m tests.crash.tx_run --seed 1 --rounds 100 --boundaries`, and once_run, reply_run,
transaction_run.
"""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random

import pytest

from backend.records import NewRecord, ProgressDelta, QueueRef
from ddmq_common.names import (
    HALF_TOPIC,
    LEVELS_GROUP,
    OP_TOPIC,
    SCHEDULE_TOPIC,
    TRANSACTION_DEAD_TOPIC,
    TRANSACTION_GROUP,
)
from tests.crash import once_run
from tests.crash.kit import boundaries
from tests.crash.kit.boundaries import BoundaryKills, BoundaryServer, Doomed
from tests.crash.kit.boundary_process import (
    AFTER,
    CHECK,
    END,
    GIVE_UP,
    LEVEL,
    MOMENTS,
    PREPARE,
    PROGRESS,
    REPLY,
    SEND,
    SETTINGS,
    boundary_of,
)

FINISH = ProgressDelta("billing", QueueRef("orders", 7, 0), 1, 0, ((0, 1),))
DECIDED = ProgressDelta(TRANSACTION_GROUP, QueueRef(HALF_TOPIC, 7, 0), 1, 0, ((0, 1),))
CHECK_DELTA = ProgressDelta(TRANSACTION_GROUP, QueueRef(HALF_TOPIC, 7, 0), 1, 0, attempts=((0, 1),))

MOVED = ProgressDelta(LEVELS_GROUP, QueueRef(SCHEDULE_TOPIC, 7, 0), 1, 0, ((0, 1),))


def to(*topics: str) -> list[NewRecord]:
    return [NewRecord(topic, 0, bytes(16), 1, b"") for topic in topics]


@pytest.mark.parametrize(
    ("topics", "progress", "boundary"),
    [
        ((HALF_TOPIC,), (), PREPARE),
        (("orders", OP_TOPIC), (DECIDED,), END),
        ((TRANSACTION_DEAD_TOPIC, OP_TOPIC), (DECIDED,), GIVE_UP),
        ((), (CHECK_DELTA,), CHECK),
        ((), (DECIDED,), PROGRESS),
        ((), (FINISH,), PROGRESS),
        (("orders",), (), SEND),
        (("orders",), (FINISH,), REPLY),
        (("%DLQ%billing",), (MOVED,), LEVEL),
        ((), (), SETTINGS),
    ],
)
def test_what_a_commit_is_for(
    topics: tuple[str, ...], progress: tuple[ProgressDelta, ...], boundary: str
) -> None:
    assert boundary_of(to(*topics), progress) == boundary


class Scripted(BoundaryServer):
    """A server that dies at its plan while it starts, `deaths` times. `plans` are those of its starts."""

    def __init__(self, folder: Path, deaths: int) -> None:
        super().__init__(folder, command="producer")
        self.plans: list[Doomed | None] = []
        self.deaths = deaths

    def _command(self) -> list[str]:
        self.plans.append(self.plan)
        dies = self.plan is not None and len(self.plans) <= self.deaths
        return [
            "sh",
            "-c",
            "kill -9 $$" if dies else "echo ready producer=127.0.0.1:1 admin=127.0.0.1:2; exec sleep 600",
        ]


def test_every_boundary_and_moment_gets_its_kill(tmp_path: Path) -> None:
    server = Scripted(tmp_path, deaths=7)
    kills = BoundaryKills([server], {"producer": (SEND, END)}, Random(1))
    server.launch()
    assert kills.collect_dead_servers() == [server], "it is killed to be told where to die"
    kills.start(server)
    server.kill()
    assert kills.unmet_boundaries == []
    assert set(kills.counts.values()) == {1}
    assert {(plan.boundary, plan.moment) for plan in server.plans[1:7] if plan} == {
        (name, moment) for name in (SEND, END) for moment in MOMENTS
    }
    server.plan_death(Doomed(END, AFTER, 1, 0))
    server.launch()
    server.kill()
    assert kills.collect_dead_servers() == [server]
    assert kills.counts[f"{AFTER} {END}"] == 2
    kills.end()
    assert server.plan is None
    server.kill()


def test_a_boundary_that_is_not_met_is_tried_at_an_earlier_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundaries, "UNMET_S", 0.0)
    server = Scripted(tmp_path, deaths=0)
    kills = BoundaryKills([server], {"producer": (SEND, END)}, Random(2))
    server.launch()
    for _ in range(5):
        kills.start(*kills.collect_dead_servers())
    first, same_plan, other = filter(None, server.plans)
    assert first.count > 1
    assert same_plan == first._replace(count=1)
    assert other.label != first.label
    assert kills.counts["unmet"] == 2
    server.kill()


def test_a_server_that_ends_by_itself_breaks_the_run_off(tmp_path: Path) -> None:
    server = Scripted(tmp_path, deaths=0)
    kills = BoundaryKills([server], {"producer": (SEND,)}, Random(1))
    server.launch()
    kills.start(*kills.collect_dead_servers())
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    server.process.wait()
    with pytest.raises(AssertionError, match="ended by itself with -15"):
        kills.collect_dead_servers()
    assert sorted(kills.unmet_boundaries) == sorted(f"{moment} {SEND}" for moment in MOMENTS)


def test_resent_messages_are_stored_once_at_every_boundary(tmp_path: Path) -> None:
    printed: list[str] = []
    assert once_run.run(tmp_path, 5, 9, printed.append, boundaries=True) == 0, "\n".join(printed)
