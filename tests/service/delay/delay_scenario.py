"""Text scenarios of the delay engine: a file of events, and behind each what it brings; docs/testing.md."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from backend.completion import Completion
from ddmq_common.delays.command import (
    ADDED,
    ALREADY_FIRED,
    CANCELLED,
    ONCE,
    PENDING,
    SCHEDULE,
    TOO_OLD,
    UNKNOWN,
    Schedule,
)
from ddmq_common.errors import DiskFullError
from ddmq_common.names import DELAY_DLQ_TOPIC, DELAY_TOPIC, OUTCOME_TOPIC
from delay_service.config import DelayConfig
from delay_service.core.decider import INGESTED
from tests.service.delay.delay_rig import DelayRig, uuid_of

CODES = {
    ADDED: "done",
    ALREADY_FIRED: "already fired",
    CANCELLED: "cancelled",
    PENDING: "pending",
    TOO_OLD: "too old",
    UNKNOWN: "unknown",
}
NAMES = {DELAY_DLQ_TOPIC: "dead letters"}
UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class DelayScenario:
    """One run. Every event is a method; what it returns stands behind it as lines that start with `>`."""

    def __init__(self, config: DelayConfig) -> None:
        self.rig = DelayRig(config)
        self.rig.make("orders")
        self.rig.make("others")
        self.rig.make(OUTCOME_TOPIC)
        self.delivered: dict[str, int] = {"orders": 0, "others": 0, DELAY_DLQ_TOPIC: 0}
        self.answered = 0
        self.lost = False  # commits have no effect and no answer, until the next start
        self.dated = False
        self._commit: Callable[..., Completion[object]] = self.rig.backend.commit  # type: ignore[assignment]

    def play(self, line: str) -> list[str]:
        """One event; what came of it."""
        verb, *words = shlex.split(line)
        plain = [word for word in words if "=" not in word]
        named = dict(word.split("=", 1) for word in words if "=" in word)
        output: list[str] = []
        getattr(self, verb)(output, *plain, **named)
        return output + self._news()

    # --- events

    def add(self, _: list[str], numbers: str, wait: str, topic: str = "orders", **schedule: str) -> None:
        first, _, last = numbers.partition("-")
        kind, what = ONCE, None
        unless = schedule.pop("unless_cancelled", None)
        condition = {} if unless is None else {"unless_cancelled": uuid_of(int(unless))}
        body = schedule.pop("body", "").encode() or None
        if schedule:
            kind, what = (
                SCHEDULE,
                Schedule(
                    cron=schedule.get("cron", ""),
                    zone=schedule.get("zone", "UTC"),
                    period_ms=int(seconds(schedule.get("every", "0s")) * 1_000),
                    repeat=int(schedule.get("repeat", 0)),
                    catch_up=schedule.get("catch_up", "fire_once"),
                ),
            )
        for number in range(int(first), int(last or first) + 1):
            self.rig.add(number, self._in(wait), body, topic=topic, kind=kind, schedule=what, **condition)
        self._settle()

    def cancel(self, _: list[str], number: str, wait: str = "") -> None:
        due_ms = self._in(wait) if wait else 0
        self.rig.cancel(int(number), due_ms, reply_queue=0, reply_id=int(number))
        self._settle()

    def move(self, _: list[str], number: str, wait: str) -> None:
        self.rig.reschedule(int(number), self._in(wait), reply_queue=0, reply_id=int(number))
        self._settle()

    def fire(self, _: list[str], number: str) -> None:
        self.rig.fire_now(int(number), reply_queue=0, reply_id=int(number))
        self._settle()

    def after(self, output: list[str], wait: str, times: str = "1") -> None:
        for _ in range(int(times)):
            self.rig.advance(seconds(wait))
            output += self._news()

    def clock(self, _: list[str], moment: str) -> None:
        then_ms = datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp() * 1e3
        self.rig.clock.advance((then_ms - self.rig.clock.wall_ms()) / 1e3)
        self.dated = True

    def close(self, _: list[str], topic: str) -> None:
        self._set_writable(topic, False)

    def open(self, _: list[str], topic: str) -> None:
        self._set_writable(topic, True)
        self._settle()

    def _set_writable(self, topic: str, writable: bool) -> None:
        info = self.rig.backend.topic(topic)
        assert info is not None
        self.rig.change(replace(info, writable=writable))

    def fail_commits(self, _: list[str], times: str) -> None:
        """The next commits are refused, for a while only: the disk is full."""
        self.rig.memory.fail_next(DiskFullError("full"), times=int(times))

    def crash(self, _: list[str]) -> None:
        """What the stores had not synced is gone."""
        self.rig.disks.crash()

    def pending(self, output: list[str]) -> None:
        counts = self.rig.service.pending_counts()
        output.append("> " + (", ".join(f"{topic} {counts[topic]}" for topic in sorted(counts)) or "nothing"))

    def done(self, output: list[str]) -> None:
        """How many requests are finished for good."""
        output.append(f"> {self.rig.fired_to()}")

    def lose_store(self, _: list[str]) -> None:
        self.rig.disks.stores.clear()

    def lose_commits(self, _: list[str]) -> None:
        self.lost = True
        self.rig.backend.commit = lambda batch, deadline: Completion()  # type: ignore[method-assign]

    def stop(self, _: list[str]) -> None:
        self.rig.service.close()

    def start(self, _: list[str]) -> None:
        self.lost = False
        self.rig.backend.commit = self._commit  # type: ignore[method-assign,assignment]
        self.rig.start()
        self.rig.ring()

    # --- what came of it

    def _in(self, wait: str) -> int:
        return self.rig.clock.wall_ms() + int(seconds(wait) * 1_000)

    def _settle(self) -> None:
        if self.lost:
            end = b"%d" % len(self.rig.stored(DELAY_TOPIC))
            store = self.rig.disks.stores[0]
            self.rig.until(lambda: store.meta(INGESTED) == end, "the store has it")
        else:
            self.rig.settle()
            self.rig.ring()

    def _news(self) -> list[str]:
        wall_s = self.rig.clock.wall_ms() / 1e3
        when = datetime.fromtimestamp(wall_s, UTC).strftime("%m-%dT%H:%M ") if self.dated else ""
        lines = []
        for topic, before in self.delivered.items():
            bodies = [body.decode() for body in self.rig.bodies(topic)]
            self.delivered[topic] = len(bodies)
            if bodies[before:]:
                lines.append(f"> {when}{NAMES.get(topic, topic)}: {' '.join(bodies[before:])}")
        outcomes = self.rig.outcomes()
        lines += [f"> {one.reply_id} {CODES[one.code]}" for one in outcomes[self.answered :]]
        self.answered = len(outcomes)
        return lines


def seconds(wait: str) -> float:
    """`-5s`, `1.5h` …"""
    return float(wait[:-1]) * UNITS_S[wait[-1]]
