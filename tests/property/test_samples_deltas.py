"""Sums over all written files are the counters, whatever failed and however often it was started again."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ddmq_common.metrics import catalogue
from ddmq_common.metrics.cells import bucket_index
from ddmq_common.metrics.deltas import Deltas, Sample
from ddmq_common.metrics.registry import Registry
from ddmq_common.metrics.samples import LAST, PROCESS, STOPPING, SampleLine, decode
from tests.examples import examples

TOPICS = st.sampled_from([f"t{index}" for index in range(5)])
Series = tuple[str, str]  # instance, topic


def pending(lines: list[SampleLine]) -> dict[str, float]:
    """The gauge of this test as a file has it."""
    values = {}
    for line in lines:
        if line.metric == catalogue.DELAY_PENDING.name:
            assert isinstance(line.value, int | float)
            values[line.labels["topic"]] = line.value
    return values


class SamplesMachine(RuleBasedStateMachine):
    """The model: plain dicts that are added to beside the registry, and everything the files say, summed."""

    @initialize()
    def begin(self) -> None:
        self.now_ms = 1_000_000
        self.starts = 0
        self.counters: dict[Series, int] = {}
        self.buckets: dict[tuple[str, str, int], int] = {}
        self.totals: dict[Series, float] = {}
        self.gauges: dict[str, int] = {}
        self.written_gauges: dict[str, float] = {}  # gauges, as the files of this start say
        self.files: list[list[SampleLine]] = []
        self.start()

    def start(self) -> None:
        self.registry = Registry()
        self.instance = f"{self.starts:016x}"
        self.starts += 1
        self.deltas = Deltas(self.registry, "consumer@here", self.instance, self.now_ms)
        self.gauges, self.written_gauges = {}, {}
        self.sample: Sample | None = None

    # --- what the process does

    @rule(topic=TOPICS, more=st.integers(1, 10**6))
    def count(self, topic: str, more: int) -> None:
        self.registry.cell(catalogue.SEND_BYTES, topic).value += more
        key = self.instance, topic
        self.counters[key] = self.counters.get(key, 0) + more

    @rule(topic=TOPICS, value=st.integers(0, 10**8))
    def observe(self, topic: str, value: int) -> None:
        self.registry.histogram(catalogue.SEND_LATENCY, topic).observe(value)
        key = self.instance, topic, bucket_index(value)
        self.buckets[key] = self.buckets.get(key, 0) + 1
        self.totals[key[:2]] = self.totals.get(key[:2], 0) + value

    @rule(topic=TOPICS, value=st.sampled_from([0, 0, 1, 7]))
    def set_gauge(self, topic: str, value: int) -> None:
        self.registry.cell(catalogue.DELAY_PENDING, topic).value = value
        self.gauges[topic] = value

    @rule(ms=st.integers(-5_000, 10_000))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    # --- what the writer does; `pass_time`, `count` … may come between these steps

    @precondition(lambda self: self.sample is None)
    @rule()
    def begin_sample(self) -> None:
        self.sample = self.deltas.begin(self.now_ms)
        self.steps = self.sample.encode_steps()

    @precondition(lambda self: self.sample is not None)
    @rule(count=st.integers(1, 3))
    def step(self, count: int) -> None:
        for _, _ in zip(range(count), self.steps, strict=False):
            pass

    @precondition(lambda self: self.sample is not None)
    @rule()
    def fail(self) -> None:
        assert self.sample is not None
        self.sample.mark_failed()
        self.sample = None

    @precondition(lambda self: self.sample is not None)
    @rule()
    def write(self) -> None:
        assert self.sample is not None
        for _ in self.steps:
            pass
        lines = [decode(line) for line in self.sample.payload().splitlines()]
        self.sample.mark_written()
        self.sample = None
        self.check_file(lines)
        self.files.append(lines)
        self.written_gauges |= pending(lines)

    def check_file(self, lines: list[SampleLine]) -> None:
        head = lines[0]
        assert (head.metric, head.value) == (PROCESS, len(lines))
        mine = [file[0] for file in self.files if file[0].instance == self.instance]
        assert head.seq == len(mine), "no gap and no number twice"
        assert head.labels["state"] == ("running" if mine else "first")
        if mine:
            assert head.from_ == mine[-1].to
        assert len({(line.metric, *line.labels.values()) for line in lines}) == len(lines)
        for line in lines[1:]:
            assert (line.seq, line.from_, line.to) == (head.seq, head.from_, head.to)
            assert line.value != 0 or line.metric == catalogue.DELAY_PENDING.name

    @precondition(lambda self: self.sample is None)
    @rule()
    def write_undisturbed(self) -> None:
        zeros = {topic: 0 for topic, value in self.written_gauges.items() if value and not self.gauges[topic]}
        self.begin_sample()
        self.write()
        assert (
            pending(self.files[-1]) == {topic: value for topic, value in self.gauges.items() if value} | zeros
        )
        self.check_sums(self.counters)

    @rule()
    def kill(self) -> None:
        """What was not written is lost: the model forgets it too."""
        self.counters = self.summed()
        self.buckets, self.totals = self.summed_buckets()
        self.start()

    def summed(self) -> dict[Series, int]:
        sums: dict[Series, int] = {}
        for line in (line for file in self.files for line in file):
            if line.metric == catalogue.SEND_BYTES.name:
                key = line.instance, line.labels["topic"]
                assert isinstance(line.value, int)
                sums[key] = sums.get(key, 0) + line.value
        return sums

    def summed_buckets(self) -> tuple[dict[tuple[str, str, int], int], dict[Series, float]]:
        sums: dict[tuple[str, str, int], int] = {}
        totals: dict[Series, float] = {}
        for line in (line for file in self.files for line in file):
            if line.metric == catalogue.SEND_LATENCY.name:
                assert isinstance(line.buckets, list)
                assert isinstance(line.counts, list)
                assert isinstance(line.sum, int | float)
                of = line.instance, line.labels["topic"]
                totals[of] = totals.get(of, 0) + line.sum
                for index, gained in zip(line.buckets, line.counts, strict=True):
                    sums[*of, index] = sums.get((*of, index), 0) + gained
        return sums, totals

    def check_sums(self, counters: dict[Series, int]) -> None:
        assert self.summed() == counters
        assert self.summed_buckets() == (self.buckets, self.totals)

    def teardown(self) -> None:
        if not hasattr(self, "deltas"):
            return
        if self.sample is not None:
            self.sample.mark_failed()
            self.sample = None
        for state in (STOPPING, LAST):
            sample = self.deltas.begin(self.now_ms, state)
            for _ in sample.encode_steps():
                pass
            lines = [decode(line) for line in sample.payload().splitlines()]
            sample.mark_written()
            assert lines[0].labels["state"] == state
            self.files.append(lines)
        self.check_sums(self.counters)


TestSamples = SamplesMachine.TestCase
TestSamples.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)


def test_begin_and_settle_alternate() -> None:
    deltas = Deltas(Registry(), "p", "0" * 16, 0)
    sample = deltas.begin(1)
    with pytest.raises(RuntimeError, match="sample 0 is open"):
        deltas.begin(2)
    sample.mark_written()
    for settle in (sample.mark_written, sample.mark_failed):
        with pytest.raises(RuntimeError, match="settled already"):
            settle()
    assert deltas.seq == 1
