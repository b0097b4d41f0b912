"""Lag as the job tells it, against a plain reference on the same lines and against what it really was."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from ddmq_common.metrics.samples import LAST
from metrics_job.arrow.add import add_up_lines
from metrics_job.arrow.lines import SeriesCodes, parse
from metrics_job.lag import COLUMNS, follow_lags
from metrics_job.minutes import INTERVAL
from tests.examples import some_of
from tests.unit.metrics_job.lag_histories import INTERVAL_MS, History, Raw, minutes_of

SEEDS = some_of(range(25))
FAR_MS = 1 << 60


def encoded(lines: list[Raw]) -> bytes:
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def job(lines: list[Raw], now_ms: int = FAR_MS) -> dict[int, tuple[float, float]]:
    """Minute → lag and lag_max, by way of the job's parser and its workers."""
    codes = SeriesCodes()
    parsed = parse([encoded(lines)], codes)
    assert not parsed.undecoded
    tables = [table.to_pylist() for table in add_up_lines(parsed.lines, codes)]
    rows = [row for table in tables for row in table]
    ends = [(line["process"], line["to"] - now_ms) for line in lines]
    ahead = {process: max(ms for other, ms in ends if other == process) for process, ms in ends if ms > 0}
    lag_rows = [_lag_row(row) for row in rows if row["kind"] == "gauge"]
    lag_rows += _runs([row for row in rows if row["kind"] == INTERVAL])
    batch = pa.Table.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in lag_rows]).to_batches()
    return {
        row["minute"]: (row["lag"], row["lag_max"])
        for minutes in follow_lags(iter(batch), ahead)
        for row in minutes.to_pylist()
    }


def _lag_row(row: Raw) -> tuple[Any, ...]:
    return (0, "g", "t", row["metric"], row["process"], row["instance"], 0, row["to_ms"], row["seq"],
            row["last"], row["told"])  # fmt: skip


def _runs(rows: list[Raw]) -> list[tuple[Any, ...]]:
    run_rows = []
    for process, instance in sorted({(row["process"], row["instance"]) for row in rows}):
        own = [row for row in rows if row["instance"] == instance]
        later = [row["to_ms"] for row in own if row["seq"]] or [own[0]["to_ms"]]
        stop = max((row["seq"] for row in own if row["is_last"]), default=-1)
        last_ms = max(row["to_ms"] for row in own)
        run = (min(later), last_ms, stop, float(INTERVAL_MS))
        run_rows.append((0, "g", "t", "", process, instance, *run, None))
    return run_rows


@pytest.mark.parametrize("seed", SEEDS)
def test_every_minute_equals_the_reference(seed: int) -> None:
    lines = History(seed).lines
    expected = minutes_of(lines)
    computed = job(lines)
    assert {minute: computed.get(minute) for minute in expected} == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_no_restart_is_a_spike_or_a_hole(seed: int) -> None:
    history = History(seed)
    truth = history.truth
    for minute, (lag, lag_max) in job(history.lines).items():
        end = min(minute * 60_000 + 59_000, max(truth))
        near = [truth[at] for at in range(max(min(truth), end - 45_000), end + 1, 1000)]
        inside = [truth[at] for at in range(max(min(truth), minute * 60_000 - 30_000), end + 1, 1000)]
        assert min(near) * 0.9 - 50 <= lag <= max(near) * 1.1 + 50, minute
        assert lag_max <= max(inside) * 1.1 + 50, minute


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_truncated_at_any_moment_shows_the_lag_of_that_moment(seed: int) -> None:
    history = History(seed)
    end_ms = history.chance.choice(sorted(history.truth)[90:])
    lines = [line for line in history.lines if line["to"] <= end_ms]
    lag, _ = max(job(lines).items())[1]
    near = [history.truth[at] for at in range(end_ms - 45_000, end_ms + 1, 1000)]
    assert min(near) * 0.9 - 50 <= lag <= max(near) * 1.1 + 50


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fast_clock_hides_no_process(seed: int) -> None:
    history = History(seed, ahead_ms=150_000)
    now_ms = max(history.truth)
    if not any(line["to"] > now_ms + 130_000 for line in history.lines):
        return  # that process had ended before
    lag, _ = max(job(history.lines, now_ms).items())[1]
    near = [history.truth[at] for at in range(now_ms - 45_000, now_ms + 1, 1000)]
    assert min(near) * 0.9 - 50 <= lag <= max(near) * 1.1 + 50


@pytest.mark.parametrize("drain_ms", [1_000, 25_000, 600_000])
def test_a_long_stop_keeps_the_lag_of_its_beginning(drain_ms: int) -> None:
    """Between the sample of the beginning of a stop and the last one a process writes none."""
    samples = [("first", 0, 0), ("running", INTERVAL_MS, 9), ("stopping", 2 * INTERVAL_MS, 7)]
    samples.append(("last", 2 * INTERVAL_MS + drain_ms, 0))
    lines: list[Raw] = []
    for seq, (state, to_ms, lag) in enumerate(samples):
        head = {"v": 1, "process": "p", "instance": f"{1:016x}", "seq": seq, "from": to_ms, "to": to_ms}
        lines.append(head | {"metric": "ddmq_process", "labels": {"state": state}, "value": 1})
        if seq:
            labels = {"group": "g", "topic": "t"}
            lines.append(head | {"metric": "ddmq_lag", "labels": labels, "value": lag})
    assert max(job(lines).items())[1][0] == 7


def test_a_stop_keeps_the_last_lag() -> None:
    history = History(3)
    stops = []
    for line in history.lines[-40:]:
        if line["metric"] == "ddmq_process" and line["labels"]["state"] == "running":
            stops = [one for one in stops if one["instance"] != line["instance"]] + [line]
    last_ms = max(history.truth)
    for line in stops:
        head = line | {"seq": line["seq"] + 1, "from": line["to"], "to": last_ms + 1000}
        history.lines.append(head | {"labels": {"state": LAST}})
        lag = {"metric": "ddmq_lag", "labels": {"group": "g", "topic": "t"}, "value": 0}
        history.lines.append(head | lag)
    lag, _ = max(job(history.lines).items())[1]
    assert lag == pytest.approx(history.truth[last_ms], rel=0.1)
    assert lag > 0
