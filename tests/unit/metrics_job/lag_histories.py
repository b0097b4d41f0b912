"""Random histories of proxies over one log, what they sampled, and what the lag really was at each moment.

A history moves queues between processes that start, drain, are killed and come back, each with sample times
and maybe a clock of its own, and tells the raw lines that such processes write. `steps_of` is the reference:
the rules of docs/metrics-job.md on those lines, one instant after the other, slow and without any index.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

START_MS = 1_795_305_600_000  # a midnight
INTERVAL_MS = 10_000
VALUE_LIFETIME_MS, DUE_MS = 2 * INTERVAL_MS, 1.5 * INTERVAL_MS
QUEUES = 6
Raw = dict[str, Any]


class ProxyStart:
    """One start of a proxy."""

    def __init__(self, name: str, instance: str, at_ms: int, ahead_ms: int) -> None:
        self.name, self.instance, self.ahead_ms = name, instance, ahead_ms
        self.queues: set[int] = set()
        self.seq = 0
        self.due_ms = at_ms
        self.reported_lag = 0.0


class History:
    """Runs for so many minutes; `lines` is what was sampled, `truth` the lag by second."""

    def __init__(self, seed: int, minutes: int = 12, ahead_ms: int = 0) -> None:
        self.chance = random.Random(seed)
        self.lines: list[Raw] = []
        self.truth: dict[int, float] = {}
        self._lag = [float(self.chance.randrange(500, 3000)) for _ in range(QUEUES)]
        self._rates = [self.chance.uniform(-8, 12) for _ in range(QUEUES)]
        self._living: list[ProxyStart] = []
        self._names: dict[str, int] = {f"p{each}": ahead_ms * (each == 1) for each in range(3)}
        self._starts = 0
        self._at_ms = START_MS
        for _ in range(self.chance.choice((1, 2, 3))):
            self._start()
        for second in range(minutes * 60):
            self._at_ms = START_MS + second * 1000
            self._second(second)

    def _second(self, second: int) -> None:
        self._lag = [max(0.0, lag + rate) for lag, rate in zip(self._lag, self._rates, strict=True)]
        self.truth[self._at_ms] = sum(map(round, self._lag))
        if second > 45 and second % 45 == 0:  # one thing at a time, so that what is told can be judged
            self._event()
        for one in list(self._living):
            if self._at_ms >= one.due_ms:
                self._sample(one, "running" if one.seq else "first")

    def _event(self) -> None:
        what = self.chance.choice(("start", "drain", "kill", "move", "none"))
        if what == "start":
            self._start()
        elif what in ("drain", "kill") and len(self._living) > 1:
            stopped_process = self._living.pop(self.chance.randrange(len(self._living)))
            stopped_process.queues = set()
            self._share_out()
            if what == "drain":
                self._sample(stopped_process, "last")
        elif what == "move":
            self._share_out()

    def _start(self) -> None:
        free = sorted(self._names.keys() - {one.name for one in self._living})
        if free:
            name = self.chance.choice(free)
            self._starts += 1
            self._living.append(ProxyStart(name, f"{self._starts:016x}", self._at_ms, self._names[name]))
            self._share_out()

    def _share_out(self) -> None:
        for one in self._living:
            one.queues = set()
        for queue in range(QUEUES):
            self.chance.choice(self._living).queues.add(queue)

    def _sample(self, one: ProxyStart, state: str) -> None:
        to_ms = self._at_ms + one.ahead_ms
        from_ms = to_ms - INTERVAL_MS if one.seq else to_ms
        lag = 0.0 if state == "first" else float(sum(round(self._lag[queue]) for queue in one.queues))
        self._line(one, from_ms, to_ms, "ddmq_process", {"state": state}, 1)
        if lag or one.reported_lag:
            self._line(one, from_ms, to_ms, "ddmq_lag", {"group": "g", "topic": "t"}, lag)
            age = {"group": "g", "topic": "t"}
            self._line(one, from_ms, to_ms, "ddmq_lag_age_ms", age, lag * 10)
        one.reported_lag = lag
        one.seq += 1
        one.due_ms = self._at_ms + INTERVAL_MS

    def _line(
        self, one: ProxyStart, from_ms: int, to_ms: int, metric: str, labels: Any, value: float
    ) -> None:
        head = {"v": 1, "process": one.name, "instance": one.instance, "seq": one.seq}
        self.lines.append(
            head | {"from": from_ms, "to": to_ms, "metric": metric, "labels": labels, "value": value}
        )


class Source:
    """What one process said, for the reference: (time, value) of every sample but its last word."""

    def __init__(self, lines: list[Raw]) -> None:
        stops = {(one["instance"], one["seq"]) for one in lines if one["labels"].get("state") == "last"}
        lags = [one for one in lines if one["metric"] == "ddmq_lag"]
        self.points = sorted(
            (one["to"], one["instance"], float(one["value"]))
            for one in lags
            if (one["instance"], one["seq"]) not in stops
        )
        self.sample_times = {
            each: [one["to"] for one in lines if one["instance"] == each and one["metric"] == "ddmq_process"]
            for each in {one["instance"] for one in lines}
        }
        self.stopped = {instance for instance, _ in stops}
        self._silences()

    def _silences(self) -> None:
        """A process that goes on and does not tell any more has nothing waiting."""
        extra = []
        for instance, sample_times in self.sample_times.items():
            own = [point for point in self.points if point[1] == instance]
            if own and own[-1][2] and max(sample_times) > own[-1][0] + VALUE_LIFETIME_MS:
                extra.append((own[-1][0] + VALUE_LIFETIME_MS, instance, 0.0))
            seconds = sorted(sample_times)[1:]
            earlier = [
                point for point in self.points if point[1] != instance and point[0] < min(sample_times)
            ]
            first_ms = own[0][0] if own else max(sample_times)
            if earlier and seconds and earlier[-1][2] and seconds[0] + VALUE_LIFETIME_MS < first_ms:
                extra.append((seconds[0] + VALUE_LIFETIME_MS, instance, 0.0))
        self.points = sorted(self.points + extra)

    def last(self, at_ms: int) -> float:
        """What it said last, if that still holds."""
        points = [point for point in self.points if point[0] <= at_ms]
        if not points:
            return 0.0
        to_ms, instance, value = points[-1]
        goes_on = any(point[1] == instance and point[0] > to_ms for point in self.points)
        return (
            value if goes_on or at_ms < max(*self.sample_times[instance], to_ms) + VALUE_LIFETIME_MS else 0.0
        )

    def next(self, at_ms: int) -> float:
        """What it said next."""
        later = [point for point in self.points if point[0] >= at_ms]
        if not later:
            return 0.0
        own = [point for point in self.points if point[0] <= at_ms and point[1] == later[0][1]]
        soon = later[0][0] - at_ms <= DUE_MS
        return later[0][2] if soon or (own and own[-1][2]) else 0.0

    def answers_for(self, at_ms: int, newest_ms: int) -> bool:
        """Whether it has said all it will say about that instant."""
        latest = max(self.sample_times, key=lambda each: max(self.sample_times[each]))
        last_ms = max(self.sample_times[latest])
        return last_ms >= at_ms or latest in self.stopped or newest_ms - last_ms > VALUE_LIFETIME_MS


def steps_of(lines: list[Raw]) -> Iterator[tuple[int, float]]:
    """The lag at each instant at which anybody told of it, and of which all that are alive have told."""
    names = sorted({one["process"] for one in lines})
    sources = [Source([one for one in lines if one["process"] == name]) for name in names]
    sources = [one for one in sources if one.points]
    newest_ms = max(one["to"] for one in lines)
    instants = sorted({point[0] for source in sources for point in source.points})
    complete = [at for at in instants if all(one.answers_for(at, newest_ms) for one in sources)]
    before = None
    for at_ms in (complete or instants) if len(sources) > 1 else instants:
        readings = sum(one.last(at_ms) for one in sources), sum(one.next(at_ms) for one in sources)
        # Ties go to what was told last.
        before = max(readings) if before is None else min(readings, key=lambda each: abs(each - before))
        yield at_ms, before


def minutes_of(lines: list[Raw]) -> dict[int, tuple[float, float]]:
    """Minute → lag at its end, highest lag in it; of minutes in which it was told."""
    minutes: dict[int, tuple[float, float]] = {}
    for at_ms, lag in steps_of(lines):
        high = minutes.get(at_ms // 60_000, (0.0, 0.0))[1]
        minutes[at_ms // 60_000] = (lag, max(lag, high))
    return minutes
