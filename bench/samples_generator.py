"""Sample files of realistic shape, as many as asked for, and the truth about them: `python -m
bench.samples_generator DIR COUNT`.

Several processes write every interval, with a daily curve; they restart, crash and vanish; their files are
lost, come late, come twice; lines are torn, damaged, repeated, of a later version, about an unknown metric.
Everything follows from the seed. `arrivals` gives the files one by one as a watching reader meets them;
`write` lays them into a directory as the writers leave it, hours that ended more than 2 h ago merged.

`ExpectedSamples` states what a reader must report. What was never written (a lost file) is in no total; what
is written twice is counted once.
"""

from __future__ import annotations

import sys
from collections import Counter as Tally
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import pi, sin
from pathlib import Path
from random import Random
from typing import NamedTuple

from bench.samples_series import (
    Counter,
    Histogram,
    Series,
    consumer_series,
    delay_series,
    producer_series,
)
from ddmq_common.metrics.samples import HOUR_MS, SampleName, folder, interval_name

DAY_MS = 86_400_000
LATE_FILES = 40  # so many other files arrive before a late one
FAULTS = (
    "restart",
    "crash",
    "lost_file",
    "disk_full",
    "clock_back",
    "late_file",
    "repeated_file",
    "repeated_line",
    "corrupt",
    "unknown version",
    "unknown metric",
    "bad value",
)
GARBAGE = (b'{"v":1,"process":"consu', b"\xff\xfe\x00 not json", b"[1,2]", b"{}}", b"seventeen")


@dataclass(frozen=True)
class Shape:
    """How much and how bad. `faults` is the share of files that meet one of FAULTS."""

    samples: int = 10_000  # lines, at least; the last interval is finished
    seed: int = 1
    start_ms: int = 1_767_571_200_000  # 2026-01-05 00:00 UTC, a Monday
    interval_ms: int = 10_000
    producers: int = 2
    consumers: int = 3
    delayers: int = 1
    topics: int = 4
    groups: int = 3
    faults: float = 0.004


class Arrival(NamedTuple):
    """One file as it is renamed into place: its path below the samples' directory and its bytes."""

    folder: str  # date=…/hour=…
    instance: str
    seq: int
    data: bytes
    apart: bool = False  # came late or again: merged with nothing

    @property
    def path(self) -> str:
        return f"{self.folder}/{interval_name(self.instance, self.seq)}"


@dataclass
class Instance:
    """One run of a process, and what a reader has to find out about it."""

    process: str
    instance: str
    seq: int = 0
    first_ms: int = 0  # start of its first interval
    last_ms: int = 0  # end of its last one
    missing: int = 0
    unnoticed: int = 0  # lost after the last file that is there
    state: str = "running"  # or "last", "vanished"
    down_until_ms: int = 0


@dataclass
class ExpectedSamples:
    """The contents of one set of files, as a reader must report them."""

    shape: Shape
    files: int = 0  # different ones: a file that came twice counts once
    lines: int = 0  # all, with damaged and repeated ones
    samples: int = 0  # good and different, the lines about the process itself included
    repeated: int = 0  # good lines that were there before
    rejects: Tally[str] = field(default_factory=Tally)  # reason -> lines
    faults: Tally[str] = field(default_factory=Tally)
    totals: dict[str, int] = field(default_factory=dict)  # counter -> sum of its deltas
    observed: dict[str, int] = field(default_factory=dict)  # histogram -> observations
    instances: list[Instance] = field(default_factory=list)
    end_ms: int = 0  # of the last interval


class Process:
    """One process over its restarts."""

    def __init__(self, name: str, phase_ms: int, series: list[Series], random: Random) -> None:
        self.name, self.phase_ms, self.series, self._random = name, phase_ms, series, random
        self.now: Instance | None = None

    def start(self, at_ms: int) -> Instance:
        self.now = Instance(self.name, f"{self._random.getrandbits(64):016x}", 0, at_ms, at_ms)
        return self.now


class Generator:
    """Runs once: `arrivals()`, then `expected` is complete."""

    def __init__(self, shape: Shape) -> None:
        self.expected = ExpectedSamples(shape)
        self._shape = shape
        self._random = Random(shape.seed)
        self._late: list[tuple[int, Arrival]] = []  # (number of the file it comes after, file)
        self._arrived = 0
        self._processes = self._make_processes()

    def _make_processes(self) -> list[Process]:
        shape, random = self._shape, self._random
        topics = [f"topic-{number}" for number in range(shape.topics)]
        groups = [f"group-{number}" for number in range(shape.groups)]
        kinds = [
            *(("producer", producer_series(random, topics)) for _ in range(shape.producers)),
            *(("consumer", consumer_series(random, topics, groups)) for _ in range(shape.consumers)),
            *(("delay", delay_series(random, topics)) for _ in range(shape.delayers)),
        ]
        return [
            Process(f"{kind}@host-{at}:{9_000 + at}", random.randrange(shape.interval_ms), series, random)
            for at, (kind, series) in enumerate(kinds)
        ]

    def arrivals(self) -> Iterator[Arrival]:
        """Every file in the order a watching reader meets them."""
        at_ms = self._shape.start_ms
        while self.expected.lines < self._shape.samples:
            at_ms += self._shape.interval_ms
            for process in self._processes:
                yield from self._arrive(self._interval(process, at_ms + process.phase_ms))
        for _, late in self._late:
            yield late
        self.expected.end_ms = at_ms + self._shape.interval_ms
        self._sum_up()

    def _arrive(self, files: list[Arrival]) -> Iterator[Arrival]:
        for file in files:
            self._arrived += 1
            yield file
        while self._late and self._late[0][0] <= self._arrived:
            yield self._late.pop(0)[1]

    def _interval(self, process: Process, to_ms: int) -> list[Arrival]:
        """What the process leaves for the interval that ends at `to_ms`."""
        run = process.now
        if run is None or run.state != "running":
            if run is not None and to_ms < run.down_until_ms:
                return []
            run = process.start(to_ms - self._shape.interval_ms)
            self.expected.instances.append(run)
        fault = ""
        if run.seq and self._random.random() < self._shape.faults:
            fault = self._random.choice(FAULTS)
            self.expected.faults[fault] += 1
        return self._faulty(process, run, to_ms, fault)

    def _faulty(self, process: Process, run: Instance, to_ms: int, fault: str) -> list[Arrival]:
        if fault == "disk_full":
            return []  # the next file covers this interval too
        if fault in ("lost_file", "crash"):
            if fault == "crash":
                run.state = "vanished"
            else:
                run.seq += 1
                run.unnoticed += 1
                run.last_ms = to_ms
            run.down_until_ms = to_ms + self._random.randrange(20_000, 90_000)
            return []
        if fault == "restart":
            run.state = "last"
            run.down_until_ms = to_ms + self._random.randrange(20_000, 60_000)
        if fault == "clock_back":
            to_ms = run.last_ms - self._random.randrange(1_000, 5_000)
        return self._file(process, run, to_ms, fault)

    def _file(self, process: Process, run: Instance, to_ms: int, fault: str) -> list[Arrival]:
        head = (
            f'"process":"{run.process}","instance":"{run.instance}","seq":{run.seq},'
            f'"from":{run.last_ms},"to":{to_ms},'
        )
        load, draw = self._load(to_ms), self._random.random
        start = '{"v":1,' + head
        lines = [start + tail for one in process.series if (tail := one.tail(load, draw())) is not None]
        state = {"last": "last"}.get(run.state, "running" if run.seq else "first")
        lines.insert(
            0,
            f'{start}"metric":"ddmq_process","labels":{{"state":"{state}"}},"value":{len(lines) + 1}}}',
        )
        data = ("\n".join(lines) + "\n").encode() + self._spoil(head, lines, fault)
        file = Arrival(folder(to_ms), run.instance, run.seq, data)
        self.expected.files += 1
        self.expected.lines += data.count(b"\n")
        self.expected.samples += len(lines)
        run.seq += 1
        run.last_ms = to_ms
        run.missing, run.unnoticed = run.missing + run.unnoticed, 0
        return self._sent(file, len(lines), to_ms, fault)

    def _sent(self, file: Arrival, lines: int, to_ms: int, fault: str) -> list[Arrival]:
        if fault == "late_file":
            self._late.append((self._arrived + LATE_FILES, file._replace(apart=True)))
            return []
        if fault == "repeated_file":  # once more, in the directory of the next hour
            self.expected.repeated += lines
            self.expected.lines += lines
            return [file, file._replace(folder=folder(to_ms + HOUR_MS), apart=True)]
        return [file]

    def _spoil(self, head: str, lines: list[str], fault: str) -> bytes:
        """Bad lines for the end of a file."""
        if fault == "repeated_line":
            self.expected.repeated += 1
            return self._random.choice(lines).encode() + b"\n"
        bad = {
            "corrupt": self._random.choice(GARBAGE),
            "unknown version": f'{{"v":2,{head}"metric":"ddmq_lag","tags":[],"value":3}}'.encode(),
            "unknown metric": f'{{"v":1,{head}"metric":"ddmq_nonsense","labels":{{}},"value":3}}'.encode(),
            "bad value": f'{{"v":1,{head}"metric":"ddmq_send_inflight","labels":{{}},"value":"x"}}'.encode(),
        }.get(fault)
        if bad is None:
            return b""
        self.expected.rejects[fault] += 1
        return bad + b"\n"

    def _load(self, to_ms: int) -> float:
        """0.03 in the night, 1 in the afternoon, half of it on weekends."""
        day = (to_ms % DAY_MS) / DAY_MS
        weekend = (to_ms // DAY_MS + 3) % 7 >= 5  # 1970-01-01 was a Thursday
        return max(0.03, sin(pi * max(0.0, day - 0.2) / 0.8)) * (0.5 if weekend else 1.0)

    def _sum_up(self) -> None:
        for process in self._processes:
            for one in process.series:
                if isinstance(one, Counter):
                    self.expected.totals[one.metric] = self.expected.totals.get(one.metric, 0) + one.total
                elif isinstance(one, Histogram):
                    observed = self.expected.observed.get(one.metric, 0)
                    self.expected.observed[one.metric] = observed + one.observed


def write(shape: Shape, directory: Path, merged: bool = True) -> ExpectedSamples:
    """All files into `directory`. Where `merged`, whole hours are one file per run, except the last three
    hours and what came late or twice, which stay one file per interval."""
    generator, hours = Generator(shape), Hours(directory)
    for file in generator.arrivals():
        if merged:
            hours.add(file)
        else:
            write_file(directory, file.path, file.data)
    hours.close()
    return generator.expected


class Hours:
    """Holds the interval files of three hours back and merges older ones."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._waiting: dict[str, list[Arrival]] = {}

    def add(self, file: Arrival) -> None:
        if file.apart:
            write_file(self._directory, file.path, file.data)
            return
        self._waiting.setdefault(file.folder, []).append(file)
        while len(self._waiting) > 3:
            self._merge(self._waiting.pop(min(self._waiting)))

    def _merge(self, files: list[Arrival]) -> None:
        runs: dict[str, list[Arrival]] = {}
        for file in files:
            runs.setdefault(file.instance, []).append(file)
        for instance, intervals in runs.items():
            if len(intervals) == 1:
                write_file(self._directory, intervals[0].path, intervals[0].data)
                continue
            intervals.sort(key=lambda interval: interval.seq)
            name = SampleName(instance, intervals[0].seq, intervals[-1].seq, merged=True)
            write_file(
                self._directory,
                f"{intervals[0].folder}/{name}",
                b"".join(interval.data for interval in intervals),
            )

    def close(self) -> None:
        for files in self._waiting.values():
            for file in files:
                write_file(self._directory, file.path, file.data)


def write_file(directory: Path, path: str, data: bytes) -> None:
    """As the writers do: under a name that starts with a dot, then renamed."""
    final = directory / path
    final.parent.mkdir(parents=True, exist_ok=True)
    hidden = final.with_name("." + final.name)
    hidden.write_bytes(data)
    hidden.rename(final)


if __name__ == "__main__":
    expected = write(Shape(samples=int(sys.argv[2])), Path(sys.argv[1]))
    print(
        f"{expected.lines:,} lines, {expected.samples:,} samples in {expected.files:,} intervals;"
        f" {dict(expected.faults)}"
    )
