"""The greenlet that takes samples: what fails costs longer intervals, and nothing else waits for it."""

from __future__ import annotations

import errno
import json
import logging
import threading
from pathlib import Path
from typing import Any

import gevent
import pytest

from ddmq.server.config import SamplesConfig
from ddmq.server.process import samples as writer_module
from ddmq.server.process.sample_folder import FolderCalls, SampleFolder
from ddmq.server.process.samples import SampleWriter, sample_writer
from ddmq_common.clock import Clock, ManualClock, SystemClock
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.deltas import Deltas
from ddmq_common.metrics.registry import Registry
from tests.support.waits import until

NO_SAMPLE_MEANT = SamplesConfig(interval_ms=3_600_000)


class MovedDisk(FolderCalls):
    """Fails while `error` is set; waits while `held` is."""

    def __init__(self) -> None:
        self.error: OSError | None = None
        self.go = threading.Event()
        self.go.set()
        self.entered = threading.Event()

    def write(self, path: Path, payload: bytes) -> None:
        self.entered.set()
        assert self.go.wait(60)
        if self.error is not None:
            raise self.error
        super().write(path, payload)


class SamplesRig:
    """A writer over a folder, a clock that is moved, and a disk that fails when told."""

    def __init__(
        self, root: Path, config: SamplesConfig = NO_SAMPLE_MEANT, clock: Clock | None = None
    ) -> None:
        self.root = root
        self.clock = ManualClock()
        self.disk = MovedDisk()
        self.metrics = Registry()
        clock = clock or self.clock
        deltas = Deltas(self.metrics, "consumer@here", "c" * 16, clock.wall_ms())
        folder = SampleFolder(root, "c" * 16, self.disk)
        self.writer = SampleWriter(config, folder, deltas, clock)
        self.sent = self.metrics.cell(catalogue.SEND_BYTES, "t")

    def files(self) -> list[list[dict[str, Any]]]:
        """By sequence number, each as its lines."""
        files = [
            [json.loads(line) for line in path.read_text().splitlines()]
            for path in self.root.rglob("samples-*.jsonl")
        ]
        return sorted(files, key=lambda lines: int(lines[0]["seq"]))

    def gains(self) -> list[int]:
        """What each file says `sent` gained."""
        return [
            sum(line["value"] for line in lines if line["metric"] == catalogue.SEND_BYTES.name)
            for lines in self.files()
        ]

    def failed(self, reason: str) -> float:
        return self.metrics.cell(catalogue.SAMPLES_FAILED, reason).value


def test_each_sample_holds_what_was_gained_since_the_one_before(tmp_path: Path) -> None:
    rig = SamplesRig(tmp_path)
    for seconds in (1, 10, 10):
        rig.clock.advance(seconds)
        rig.sent.value += seconds
        assert rig.writer.sample()
    heads = [lines[0] for lines in rig.files()]
    assert rig.gains() == [1, 10, 10]
    assert [head["to"] - head["from"] for head in heads] == [1_000, 10_000, 10_000]
    assert [head["labels"]["state"] for head in heads] == ["first", "running", "running"]
    assert rig.metrics.cell(catalogue.SAMPLES_WRITTEN).value == 3


def list_log_records(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """What others log meanwhile, a greenlet of another test say, is not counted."""
    return [record for record in caplog.records if record.name == "ddmq.samples"]


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.ENOSPC, "full"), (errno.EROFS, "read-only"), (errno.ENOTDIR, "missing"), (errno.EIO, "other")],
)
def test_what_could_not_be_written_is_in_the_next_file(
    tmp_path: Path, number: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ddmq.samples")
    rig = SamplesRig(tmp_path)
    rig.sent.value += 1
    assert rig.writer.sample()
    rig.disk.error = OSError(number, "fault")
    for _ in range(3):
        rig.clock.advance(10)
        rig.sent.value += 10
        assert not rig.writer.sample()
    rig.disk.error = None
    rig.clock.advance(10)
    rig.sent.value += 10
    assert rig.writer.sample()
    assert rig.gains() == [1, 40]
    last = rig.files()[-1][0]
    assert (last["seq"], last["to"] - last["from"]) == (1, 40_000)
    assert rig.failed(reason) == 3
    log_records = list_log_records(caplog)
    assert [record.levelname for record in log_records] == ["WARNING", "INFO"], "once each"
    assert log_records[0].reason == reason


def test_another_reason_is_said_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ddmq.samples")
    rig = SamplesRig(tmp_path)
    for number in (errno.ENOSPC, errno.ENOSPC, errno.EROFS):
        rig.disk.error = OSError(number, "fault")
        rig.writer.sample()
    assert len(list_log_records(caplog)) == 2
    assert (rig.failed("full"), rig.failed("read-only")) == (2, 1)


@pytest.mark.slow
def test_memory_does_not_grow_while_nothing_can_be_written(tmp_path: Path) -> None:
    rig = SamplesRig(tmp_path)
    rig.disk.error = OSError(errno.ENOSPC, "full")
    for topic in range(50):
        rig.metrics.cell(catalogue.SEND_BYTES, f"t{topic}").value += 1
        rig.writer.sample()
    deltas = rig.writer._deltas
    assert not deltas.values
    assert not deltas.states


def test_a_clock_that_is_set_back_is_written_as_it_is(tmp_path: Path) -> None:
    rig = SamplesRig(tmp_path)
    start = rig.clock.wall_ms()
    for step in (10, -7_200, 10):
        rig.clock.step_wall(step)
        assert rig.writer.sample()
    times = [(lines[0]["from"] - start, lines[0]["to"] - start) for lines in rig.files()]
    assert times == [(0, 10_000), (10_000, -7_190_000), (-7_190_000, -7_180_000)]
    assert len(list(tmp_path.glob("date=*/hour=*"))) == 2


@pytest.mark.slow
def test_others_run_while_a_big_registry_is_read_and_while_the_disk_is_slow(tmp_path: Path) -> None:
    rig = SamplesRig(tmp_path, clock=SystemClock())
    for topic in range(10_000):
        rig.metrics.cell(catalogue.SEND_BYTES, f"t{topic}").value += 1
    ticks = 0
    ticker = gevent.get_hub().loop.timer(0.001, 0.001)

    def tick() -> None:
        nonlocal ticks
        ticks += 1

    ticker.start(tick)
    rig.disk.go.clear()
    sampling = gevent.spawn(rig.writer.sample)
    until(rig.disk.entered.is_set)
    encoding = ticks
    assert encoding >= 5, "the hub was held"
    until(lambda: ticks >= encoding + 3)
    assert not sampling.ready()
    rig.disk.go.set()
    assert sampling.get(timeout=60)
    ticker.stop()
    ticker.close()
    assert len(rig.files()[0]) >= 10_001


def test_gauges_are_collected_before_each_sample(tmp_path: Path) -> None:
    rig = SamplesRig(tmp_path)
    looks = iter([5, 0, 0])
    rig.metrics.add_collector(
        lambda: setattr(rig.metrics.cell(catalogue.LAG, "g", "t"), "value", next(looks))
    )
    for _ in range(3):
        assert rig.writer.sample()
    shown = [[line["value"] for line in lines if line["metric"] == "ddmq_lag"] for lines in rig.files()]
    assert shown == [[5], [0], []], "once when it becomes 0"


def test_it_samples_at_once_and_then_by_itself_until_it_is_finished(tmp_path: Path) -> None:
    rig = SamplesRig(tmp_path, SamplesConfig(interval_ms=100), SystemClock())
    rig.sent.value += 1
    rig.writer.start()
    until(lambda: len(rig.files()) >= 3)
    rig.sent.value += 1
    rig.writer.finish()
    states = [lines[0]["labels"]["state"] for lines in rig.files()]
    assert states == ["first", *["running"] * (len(states) - 2), "last"]
    assert sum(rig.gains()) == 2
    assert rig.gains()[0] == 1
    assert rig.metrics.cell(catalogue.SAMPLES_BYTES).value > 0, "swept too"


def test_a_stop_takes_what_waits_before_queues_are_let_go_and_nothing_between(tmp_path: Path) -> None:
    rig = SamplesRig(tmp_path, SamplesConfig(interval_ms=100), SystemClock())
    lag = rig.metrics.cell(catalogue.LAG, "g", "t")
    lag.value = 7
    rig.writer.start()
    until(lambda: len(rig.files()) >= 2)
    lag.value = 3
    rig.writer.begin_stop()
    count = len(rig.files())
    lag.value = 0  # the queues are let go; the process finishes what is open for several intervals
    gevent.sleep(0.3)
    assert len(rig.files()) == count
    rig.writer.finish()
    *_, stopping, last = rig.files()
    assert [lines[0]["labels"]["state"] for lines in (stopping, last)] == ["stopping", "last"]
    assert [line["value"] for line in stopping if line["metric"] == "ddmq_lag"] == [3]
    assert [lines[0]["seq"] for lines in rig.files()] == list(range(count + 1))


def test_a_disk_that_hangs_does_not_keep_the_process_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer_module, "LAST_S", 0.05)
    rig = SamplesRig(tmp_path)
    rig.disk.go.clear()
    rig.writer.start()
    until(rig.disk.entered.is_set)
    rig.writer.begin_stop()
    rig.writer.finish()
    rig.writer.close()
    rig.disk.go.set()
    for state in ("stopping", "last"):
        assert f"the {state} sample was not written in time" in caplog.text


def test_a_defect_ends_no_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = SamplesRig(tmp_path, SamplesConfig(interval_ms=100))
    raised: list[int] = []

    def broken(*_: object) -> None:
        if not raised:
            raised.append(1)
            raise ValueError("a defect")

    monkeypatch.setattr(rig.writer, "_encode", broken)
    rig.writer.start()
    until(rig.files)
    rig.writer.close()
    assert raised


def test_samples_can_be_off_and_elsewhere(tmp_path: Path) -> None:
    deltas = Deltas(Registry(), "p", "d" * 16, 0)
    assert sample_writer(SamplesConfig(enabled=False), tmp_path, deltas, ManualClock()) is None
    for config, folder in (
        (SamplesConfig(), tmp_path / "metrics"),
        (SamplesConfig(dir=tmp_path / "elsewhere"), tmp_path / "elsewhere"),
    ):
        writer = sample_writer(config, tmp_path, deltas, ManualClock())
        assert writer is not None
        assert writer.sample()
        assert len(list(folder.rglob("*.jsonl"))) == 1
