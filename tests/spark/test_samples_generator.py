"""The generator's word about its files is the truth: a plain reader finds what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.samples_generator import FAULTS, ExpectedSamples, Generator, Shape, write
from ddmq_common.metrics.samples import decode, encode
from tests.spark import reference

SHAPE = Shape(samples=60_000, seed=5, faults=0.08)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExpectedSamples]:
    directory = tmp_path_factory.mktemp("samples")
    return directory, write(SHAPE, directory)


@pytest.fixture(scope="module")
def parsed(samples: tuple[Path, ExpectedSamples]) -> reference.ParsedSamples:
    return reference.read(samples[0])


def test_every_fault_is_in_it(samples: tuple[Path, ExpectedSamples]) -> None:
    assert set(samples[1].faults) == set(FAULTS)
    assert len(samples[1].instances) > SHAPE.producers + SHAPE.consumers + SHAPE.delayers


def test_lines_duplicates_and_rejects_match_the_expected_samples(
    samples: tuple[Path, ExpectedSamples], parsed: reference.ParsedSamples
) -> None:
    _, truth = samples
    reasons = dict.fromkeys((reason for _, reason in parsed.rejects), 0)
    for (_, reason), lines in parsed.rejects.items():
        reasons[reason] += lines
    assert reasons == truth.rejects
    assert len(parsed.lines) == truth.samples
    assert sum(parsed.duplicates.values()) == truth.repeated
    assert truth.samples + truth.repeated + sum(reasons.values()) == truth.lines >= SHAPE.samples


def test_totals_match_the_expected_samples(
    samples: tuple[Path, ExpectedSamples], parsed: reference.ParsedSamples
) -> None:
    _, truth = samples
    lines = parsed.lines
    totals: dict[str, float] = dict.fromkeys(truth.totals, 0)
    for (_, metric, *_), (total, _, _) in reference.counters(lines, reference.HOUR_MS).items():
        totals[metric] += total
    assert totals == truth.totals
    observed = dict.fromkeys(truth.observed, 0)
    for (_, metric, process, *_), (count, *_) in reference.latencies(lines, reference.MINUTE_MS).items():
        observed[metric] += count if process == "" else 0
    assert observed == truth.observed


def test_runs_match_the_expected_samples(
    samples: tuple[Path, ExpectedSamples], parsed: reference.ParsedSamples
) -> None:
    _, truth = samples
    expected = {run.instance: (run.seq - run.missing - run.unnoticed, run.missing) for run in truth.instances}
    rows = reference.processes(parsed)
    assert {
        instance: (files, missing) for (_, _, instance), (_, files, missing, *_) in rows.items()
    } == expected


def test_lines_are_readable_by_the_codec_of_the_servers() -> None:
    for file in Generator(Shape(samples=3_000, seed=9, faults=0.0)).arrivals():
        for text in file.data.splitlines():
            assert encode(decode(text)) == text


def test_same_seed_same_files() -> None:
    small = Shape(samples=3_000, seed=9, faults=0.2)
    once, repeated = (list(Generator(small).arrivals()) for _ in range(2))
    assert once == repeated
    other = list(Generator(Shape(samples=3_000, seed=10, faults=0.2)).arrivals())
    assert [file.data for file in other] != [file.data for file in once]


def test_hours_are_merged_and_the_last_ones_are_not(tmp_path: Path) -> None:
    shape = Shape(samples=60_000, interval_ms=120_000, faults=0.0, topics=2, groups=1)
    truth = write(shape, tmp_path)
    hours = sorted(tmp_path.rglob("hour=*"))
    merged = {hour for hour in hours if list(hour.glob("hour-*.jsonl"))}
    assert merged == set(hours[:-3])
    assert not [hour for hour in merged if list(hour.glob("samples-*"))]
    assert len(reference.read(tmp_path).lines) == truth.samples
