"""The gain of a registry since the last file that was really written.

`begin` opens a sample; its `encode_steps` reads and encodes the cells, a few at a time, so that the caller
can let others run in between; `payload` is the file. Then it is either written or it failed:

    idle ── begin ──▶ open ── mark_written ──▶ idle, the next number; its end is the next beginning
                        └──── mark_failed ───▶ idle, as before `begin`: the next sample holds these gains too

So the sums over all files are the counters at the last `to`, whatever failed. Kept is one baseline per
label set (what the files so far add up to), never a file that waits: memory is bounded by the registry's
label sets. Cells are read one after the other; whatever is added meanwhile counts once, in this file or the
next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite

from ddmq_common.metrics.cells import Histogram, MetricCell
from ddmq_common.metrics.metric import Metric
from ddmq_common.metrics.registry import Registry
from ddmq_common.metrics.samples import (
    FIRST,
    PROCESS,
    RUNNING,
    VERSION,
    SampleLine,
    SampleName,
    encode,
    folder,
    interval_name,
)

CELLS_A_STEP = 64
HISTOGRAMS_A_STEP = 16
Labels = tuple[str, ...]
State = tuple[list[int], float]  # counts by bucket and sum of a histogram


class Deltas:
    """Produces the samples of one process from its start on.

    `process`: its name; `instance`: the name of this start.
    """

    def __init__(self, registry: Registry, process: str, instance: str, started_ms: int) -> None:
        self.registry = registry
        self.process = process
        self.instance = instance
        self.seq = 0  # of the next file
        self.from_ms = started_ms  # where the next interval begins
        self.values: dict[str, dict[Labels, float]] = {}  # the baselines, by metric
        self.states: dict[str, dict[Labels, State]] = {}
        self._open: Sample | None = None

    def begin(self, to_ms: int, state: str = RUNNING) -> Sample:
        """Begin the sample of the interval that ends at `to_ms` (wall clock).

        `state`: STOPPING while the process stops but still owns its queues, LAST when it has released them;
        the very first sample is FIRST. Raises RuntimeError while another sample is open.
        """
        if self._open is not None:
            raise RuntimeError(f"sample {self.seq} is open: say written or failed before the next begins")
        self._open = Sample(self, to_ms, FIRST if state == RUNNING and not self.seq else state)
        return self._open

    def settle_sample(self, sample: Sample, written: bool) -> None:
        """Close the open sample for `Sample.mark_written` or `Sample.mark_failed`."""
        if self._open is not sample:
            raise RuntimeError(f"sample {sample.seq} is settled already")
        self._open = None
        if written:
            for metric, values in sample.values.items():
                self.values.setdefault(metric, {}).update(values)
            for metric, states in sample.states.items():
                self.states.setdefault(metric, {}).update(states)
            self.seq += 1
            self.from_ms = sample.to_ms


class Sample:
    """A sample file under construction."""

    def __init__(self, deltas: Deltas, to_ms: int, state: str) -> None:
        self.seq = deltas.seq
        self.to_ms = to_ms
        self.values: dict[str, dict[Labels, float]] = {}  # what was read and will be the baseline
        self.states: dict[str, dict[Labels, State]] = {}
        self._deltas = deltas
        self._state = state
        self._lines: list[bytes] = []

    @property
    def folder(self) -> str:
        """Return the relative folder for the file."""
        return folder(self.to_ms)

    @property
    def name(self) -> SampleName:
        """Return the name of the file."""
        return interval_name(self._deltas.instance, self.seq)

    def payload(self) -> bytes:
        """Return the file's contents. `encode_steps` must have finished."""
        lines = len(self._lines) + 1
        first = self._encode(PROCESS, ("state",), (self._state,), value=lines)
        return b"\n".join((first, *self._lines, b""))

    def mark_written(self) -> None:
        """Close a sample whose file has been written; its values become the new baseline."""
        self._deltas.settle_sample(self, written=True)

    def mark_failed(self) -> None:
        """Close a sample whose file was not written; the next sample repeats its increments and its
        number."""
        self._deltas.settle_sample(self, written=False)

    def encode_steps(self) -> Iterator[None]:
        """Read and encode every cell, yielding after a few.

        Cells created meanwhile may wait for the next sample.
        """
        for metric, cells in self._deltas.registry.numbers():
            yield from self._encode_numbers(metric, cells)
        for metric, histograms in self._deltas.registry.histograms():
            yield from self._encode_histograms(metric, histograms)

    def _encode_numbers(self, metric: Metric, cells: Mapping[Labels, MetricCell]) -> Iterator[None]:
        before = self._deltas.values.get(metric.name, {})
        read = self.values.setdefault(metric.name, {})
        gauge = metric.kind == "gauge"
        for count, (labels, cell) in enumerate(list(cells.items()), 1):
            value, base = cell.value, before.get(labels, 0)
            if (value != base or (gauge and value)) and isfinite(value):
                read[labels] = value
                reported = value if gauge else value - base
                self._lines.append(self._encode(metric.name, metric.labels, labels, value=reported))
            if count % CELLS_A_STEP == 0:
                yield
        yield

    def _encode_histograms(self, metric: Metric, cells: Mapping[Labels, Histogram]) -> Iterator[None]:
        before = self._deltas.states.get(metric.name, {})
        read = self.states.setdefault(metric.name, {})
        for count, (labels, histogram) in enumerate(list(cells.items()), 1):
            counts, total = before.get(labels) or ([0] * len(histogram.counts), 0.0)
            if histogram.counts != counts:
                now, sum_now = histogram.counts.copy(), histogram.total
                read[labels] = now, sum_now
                gains = {
                    i: new - old for i, (new, old) in enumerate(zip(now, counts, strict=True)) if new != old
                }
                self._lines.append(
                    self._encode(
                        metric.name,
                        metric.labels,
                        labels,
                        sum=sum_now - total,
                        buckets=list(gains),
                        counts=list(gains.values()),
                    )
                )
            if count % HISTOGRAMS_A_STEP == 0:
                yield
        yield

    def _encode(
        self, metric: str, label_names: tuple[str, ...], labels: Labels, **numbers: float | list[int]
    ) -> bytes:
        deltas = self._deltas
        return encode(
            SampleLine(
                v=VERSION,
                process=deltas.process,
                instance=deltas.instance,
                seq=self.seq,
                from_=deltas.from_ms,
                to=self.to_ms,
                metric=metric,
                labels=dict(zip(label_names, labels, strict=True)),
                **numbers,  # type: ignore[arg-type]  # value, or sum, buckets and counts
            )
        )
