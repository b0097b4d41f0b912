"""Takes a sample of this process's metrics every `interval_ms`, without disturbing other work.

The hub reads and encodes the cells in slices of about SLICE_S; files are the work of a native thread of its
own. What fails is counted and said once, until it is different; the gains stay in the counters and are in the
next file, so a full disk costs no more than longer intervals. Every SWEEP_MS the files of past hours are
merged and the oldest deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import gevent
from gevent.event import Event
from gevent.threadpool import ThreadPool

from ddmq.server.config import SamplesConfig
from ddmq.server.process.sample_folder import SampleFolder, failure_reason
from ddmq_common.clock import Clock
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.deltas import Deltas, Sample
from ddmq_common.metrics.registry import ANSWERS_S, Registry
from ddmq_common.metrics.samples import LAST, RUNNING, STOPPING

SLICE_S = 0.001  # then everything else on the hub has its turn
SWEEP_MS = 600_000
LAST_S = 2.0  # for each of the two last samples of a process that stops, at most
T = TypeVar("T")
log = logging.getLogger("ddmq.samples")


class SampleWriter:
    """Writes the metric samples of a process to files. Call `start` once. To stop, call `begin_stop` while
    the process still owns its queues, then `finish` (with a last sample); or call `close` to stop at once."""

    def __init__(self, config: SamplesConfig, folder: SampleFolder, deltas: Deltas, clock: Clock) -> None:
        metrics: Registry = deltas.registry
        self._config = config
        self._folder = folder
        self._deltas = deltas
        self._clock = clock
        self._metrics = metrics
        self._written = metrics.cell(catalogue.SAMPLES_WRITTEN)
        self._bytes = metrics.cell(catalogue.SAMPLES_BYTES)
        self._failures: dict[str, str] = {}  # what fails at present: what was being done → reason
        self._sweep_at = 0.0  # monotonic
        self._thread = ThreadPool(1)  # not the hub's: a disk that hangs must not keep others from theirs
        self._stopping = Event()
        self._greenlet: Any = None

    def start(self) -> None:
        """Start taking samples periodically, until `finish` or `close`."""
        self._sweep_at = self._clock.monotonic() + self._config.interval_ms / 1000
        self._greenlet = gevent.spawn(self._run)

    def _run(self) -> None:
        self._sample_and_sweep()  # at once: a process that dies young is seen
        while not self._stopping.wait(self._config.interval_ms / 1000):
            self._sample_and_sweep()

    def _sample_and_sweep(self) -> None:
        try:
            self.sample()
            if self._clock.monotonic() >= self._sweep_at:
                self._sweep_at = self._clock.monotonic() + SWEEP_MS / 1000
                self.sweep()
        except Exception:  # a defect of ours must not end the samples, nor anything else
            log.exception("a sample failed")

    def sample(self, state: str = RUNNING) -> bool:
        """Take a sample and wait until it is written. Returns False if that failed, which is also counted and
        logged."""
        self._metrics.run_collectors()
        gevent.sleep(ANSWERS_S)
        sample = self._deltas.begin(self._clock.wall_ms(), state)
        is_written = False
        try:
            self._encode(sample)
            _, error = self._off_hub(lambda: self._write(sample))
            is_written = error is None
        finally:
            (sample.mark_written if is_written else sample.mark_failed)()
        self._written.value += is_written
        self._report_failures("write", [error] if error else [])
        return is_written

    def _encode(self, sample: Sample) -> None:
        """Encode the sample on the hub, in steps between which the hub serves its sockets."""
        pause_at = self._clock.monotonic() + SLICE_S
        for _ in sample.encode_steps():
            if self._clock.monotonic() >= pause_at:
                gevent.sleep(SLICE_S)
                pause_at = self._clock.monotonic() + SLICE_S

    def _write(self, sample: Sample) -> None:
        self._folder.write(sample.folder, sample.name, sample.payload())

    def sweep(self) -> None:
        """Merge and delete sample files now, and wait until that is done."""
        config, now_ms = self._config, self._clock.wall_ms()
        swept, error = self._off_hub(lambda: self._folder.sweep(now_ms, config.keep_days, config.bytes_max))
        if swept is not None:
            self._bytes.value = swept.remaining_bytes
            for why, count in swept.deleted.items():
                self._metrics.cell(catalogue.SAMPLES_DELETED, why).value += count
        self._report_failures("merge or delete", swept.failed if swept else [error] if error else [])

    def _off_hub(self, call: Callable[[], T]) -> tuple[T | None, OSError | None]:
        """Run `call` in the writer's thread; return its result or its OSError."""
        result: tuple[T | None, OSError | None] = self._thread.apply(_call_catching, (call,))
        return result

    def _report_failures(self, what: str, errors: Sequence[OSError]) -> None:
        """Count each failure. Log only the first failure of a series, and its end."""
        for error in errors:
            self._metrics.cell(catalogue.SAMPLES_FAILED, failure_reason(error)).value += 1
        before = self._failures.pop(what, None)
        if errors:
            now = self._failures[what] = failure_reason(errors[0])
            if now != before:
                extra = {"reason": now, "error": str(errors[0]), "dir": str(self._folder.root)}
                log.warning(
                    "sample files: cannot %s; tried again, no message is concerned", what, extra=extra
                )
        elif before is not None:
            log.info("sample files: can %s again", what, extra={"dir": str(self._folder.root)})

    def begin_stop(self) -> None:
        """Take a sample with the waiting messages of a process that begins to stop, while it still owns its
        queues; only the last sample may follow. Gives up after LAST_S."""
        self._stopping.set()
        self._sample_in_time(STOPPING)

    def finish(self) -> None:
        """Take the last sample, when the counters of the process no longer change. Gives up after LAST_S."""
        self._stopping.set()
        self._sample_in_time(LAST)

    def _sample_in_time(self, state: str) -> None:
        """Wait for the sample that is being written, then take another one; both within LAST_S."""
        is_written = False
        with gevent.Timeout(LAST_S, False):
            if self._greenlet is not None:
                self._greenlet.join()
            self.sample(state)
            is_written = True
        if not is_written:
            extra = {"dir": str(self._folder.root)}
            log.warning("the %s sample was not written in time", state, extra=extra)

    def close(self) -> None:
        """Take no more samples. A sample that is being written may still be completed."""
        self._stopping.set()
        if self._greenlet is not None:
            self._greenlet.kill(block=False)


def _call_catching(call: Callable[[], T]) -> tuple[T | None, OSError | None]:
    """Call `call` and return its result, or its OSError as a value."""
    try:
        return call(), None
    except OSError as error:
        return None, error


def sample_writer(config: SamplesConfig, data_dir: Path, deltas: Deltas, clock: Clock) -> SampleWriter | None:
    """Build the writer of one process from its configuration; None if samples are off."""
    if not config.enabled:
        return None
    folder = SampleFolder(config.dir or data_dir / "metrics", deltas.instance)
    return SampleWriter(config, folder, deltas, clock)
