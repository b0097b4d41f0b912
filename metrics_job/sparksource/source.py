"""The format that Spark calls to read: DdmqSource, its batch reader and its stream reader.

The stream reader lives in one process of the driver as long as the query; `read` runs on executors, from a
pickled copy without a connection. Only Spark's checkpoint stores offsets, not the proxies, and a batch
that Spark repeats is read again by the same offsets.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812 - the name everyone uses
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ddmq_client import FetchedQueue, Message, QueueBounds, RangeReader
from metrics_job.sparksource import offsets
from metrics_job.sparksource.connecting import build_client_security
from metrics_job.sparksource.offsets import Loss, OffsetRange, QueueOffsets
from metrics_job.sparksource.options import (
    DataLossError,
    ReadOptions,
    SourceError,
    SourceOptionError,
    Where,
    read_options,
    write_options,
)
from metrics_job.sparksource.sink import BatchWriter, StreamWriter

log = logging.getLogger("ddmq.spark")

BATCH_ROWS = 10_000
BATCH_BYTES = 8 * 1024 * 1024
FETCH_MESSAGES = 1_000  # of one answer; the subscription's limit holds too
LINGER_MS = 100
SCHEMA = (
    T.StructType()
    .add("topic", T.StringType(), False)
    .add("queue", T.IntegerType(), False)
    .add("offset", T.LongType(), False)
    .add("key", T.BinaryType())
    .add("value", T.BinaryType(), False)
    .add("tags", T.StringType())
    .add("message_id", T.StringType())
    .add("properties", T.MapType(T.StringType(), T.StringType()))
    .add("stored_at", T.TimestampType())
)
ARROW = to_arrow_schema(SCHEMA, timezone="UTC")


def open_reader(options: ReadOptions) -> RangeReader:
    """Return a reader for the topics of `options`. It connects in its first call."""
    return RangeReader(
        options.servers,
        options.group,
        options.topics,
        timeout_ms=options.timeout_ms,
        **build_client_security(options.security),
    )


def report_loss(loss: Loss, fail: bool) -> None:
    if fail:
        raise DataLossError(
            f"{loss}. To go on without them set option failOnDataLoss to false; to keep messages longer see "
            "docs/retention.md"
        )
    log.warning("%d messages lost: %s", loss.count, loss, extra={"count": loss.count})


def read_range(options: ReadOptions, offset_range: OffsetRange) -> Iterator[Any]:
    """Yield the messages of a range as record batches of SCHEMA.

    Raises DataLossError, SourceError, ddmq_client errors.
    """
    with open_reader(options) as reader:
        rows: list[Message] = []
        size = 0
        for messages in _fetch_messages(reader, options, offset_range):
            rows += messages
            size += sum(len(message.body) for message in messages)
            if len(rows) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield _to_record_batch(offset_range, rows)
                rows, size = [], 0
        if rows:
            yield _to_record_batch(offset_range, rows)


def _fetch_messages(
    reader: RangeReader, options: ReadOptions, offset_range: OffsetRange
) -> Iterator[Sequence[Message]]:
    offset = offset_range.start
    give_up_at = time.monotonic() + options.timeout_ms / 1000
    while offset < offset_range.end:
        count = min(offset_range.end - offset, FETCH_MESSAGES)
        answer = reader.read(offset_range.topic, offset_range.name, offset, count, LINGER_MS)
        loss = _find_loss(answer, offset, offset_range)
        if loss is not None:
            report_loss(loss, options.fail_on_loss)
        if answer.next_offset < offset:
            return  # the queue has shrunk: reported above
        yield [message for message in answer.messages if message.offset < offset_range.end]
        if answer.next_offset > offset:
            offset = answer.next_offset
            give_up_at = time.monotonic() + options.timeout_ms / 1000
        elif time.monotonic() > give_up_at:
            raise SourceError(
                f"queue {offset_range.number} of topic {offset_range.topic} gave nothing at offset {offset} "
                f"for {options.timeout_ms} ms, although it ends at {answer.end_offset}: see the proxy's log"
            )


def _find_loss(answer: FetchedQueue, offset: int, offset_range: OffsetRange) -> Loss | None:
    """Return the section of `[offset, offset_range.end)` that is lost according to this answer, or None."""
    if answer.next_offset < offset:
        return Loss(
            offset_range.topic,
            offset_range.number,
            offset,
            offset_range.end,
            "the queue ends before them now",
        )
    first = answer.first_offset or 0
    oldest = answer.messages[0].offset if answer.messages else answer.next_offset
    if first <= offset or oldest < first:
        return None
    return Loss(
        offset_range.topic,
        offset_range.number,
        offset,
        min(first, offset_range.end),
        "retention removed them meanwhile",
    )


def _to_record_batch(offset_range: OffsetRange, rows: Sequence[Message]) -> Any:
    count = len(rows)
    columns: list[Sequence[Any]] = [
        [row.offset for row in rows],
        [None if row.key is None else row.key.encode() for row in rows],
        [row.body for row in rows],
        [row.tags for row in rows],
        [row.message_id for row in rows],
        [list((row.properties or {}).items()) for row in rows],
        [None if row.stored_ms is None else row.stored_ms * 1000 for row in rows],
    ]
    queue_columns = (
        pa.repeat(pa.scalar(offset_range.topic), count),
        pa.repeat(pa.scalar(offset_range.number, pa.int32()), count),
    )
    arrays = [pa.array(values, kind) for values, kind in zip(columns, ARROW.types[2:], strict=True)]
    return pa.RecordBatch.from_arrays([*queue_columns, *arrays], schema=ARROW)


class RangePartition(InputPartition):
    """The range of one queue that one task reads."""

    def __init__(self, offset_range: OffsetRange) -> None:
        super().__init__(None)
        self.offset_range = offset_range


class DdmqSource(DataSource):
    """The format `ddmq`; see docs/spark.md for its options."""

    @classmethod
    def name(cls) -> str:
        return "ddmq"

    def schema(self) -> T.StructType:
        """Return the columns of a read. Raises SourceOptionError for invalid options."""
        read_options(self.options)
        return SCHEMA

    def reader(self, schema: T.StructType) -> DataSourceReader:
        return BatchReader(_check_read(self.options, schema))

    def streamReader(self, schema: T.StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return StreamReader(_check_read(self.options, schema))

    def writer(self, schema: T.StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(write_options(self.options), schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: T.StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        return StreamWriter(write_options(self.options), schema, overwrite)


def _check_read(options: Any, schema: T.StructType) -> ReadOptions:
    if schema != SCHEMA:
        raise SourceOptionError(
            "format ddmq: it has a schema of its own; leave .schema(…) out and select afterwards"
        )
    return read_options(options)


def find_offsets(
    reader: RangeReader, where: Where, bounds: Sequence[QueueBounds], option: str
) -> QueueOffsets:
    """Return the offset of `where` in every queue. Times are looked up by the reader."""
    if where.time_ms is None:
        return offsets.resolve_fixed_offsets(where, bounds, option)
    time_offsets: QueueOffsets = {}
    for at in bounds:
        time_offsets.setdefault(at.topic, {})[str(at.number)] = reader.offset_at(at, where.time_ms)
    return time_offsets


class _RangeReader:
    """The base of both readers."""

    _options: ReadOptions

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return (
            read_range(self._options, partition.offset_range)
            if isinstance(partition, RangePartition)
            else iter(())
        )


class BatchReader(_RangeReader, DataSourceReader):
    """Reads from start to end offsets. Spark looks both up when it plans the read."""

    def __init__(self, options: ReadOptions) -> None:
        if options.trigger_messages is not None:
            raise SourceOptionError("format ddmq: option maxMessagesPerTrigger is for streams only")
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the ranges of all queues.

        Raises SourceOptionError for a topic that does not exist, and DataLossError.
        """
        options = self._options
        with open_reader(options) as reader:
            bounds = reader.bounds()
            missing = set(options.topics) - {at.topic for at in bounds}
            if missing:
                raise SourceOptionError(
                    f"format ddmq: topics {sorted(missing)} do not exist, or group {options.group} may not "
                    "read them; create them, or name others in option topic or topics"
                )
            start = find_offsets(reader, options.start or Where(edge="first"), bounds, "startingOffsets")
            end = find_offsets(reader, options.end or Where(edge="last"), bounds, "endingOffsets")
        end = offsets.not_before(end, start, bounds)
        ranges, losses = offsets.plan_ranges(start, end, bounds, options.partition_messages)
        for loss in losses:
            report_loss(loss, options.fail_on_loss)
        return [RangePartition(offset_range) for offset_range in ranges]


class StreamReader(_RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads an endless stream that begins at an offset of each queue."""

    def __init__(self, options: ReadOptions) -> None:
        if options.end is not None:
            raise SourceOptionError(
                "format ddmq: option endingOffsets is for batches only: a stream has no end"
            )
        self._options = options
        self._reader: RangeReader | None = None
        self._target: QueueOffsets | None = None
        self._lost = 0  # offsets, since this query was started

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_reader": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offsets at which a query without a checkpoint starts."""
        bounds = self._read_bounds()
        start = self._options.start or Where(edge="last")
        start_offsets = find_offsets(self._open(), start, bounds, "startingOffsets")
        return {topic: start_offsets.get(topic, {}) for topic in self._options.topics}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end offsets of the next micro-batch: the latest ones, capped by `limit`."""
        end = offsets.list_end_offsets(self._read_bounds(), self._options.topics)
        if self._target is not None:
            end = offsets.not_past(end, self._target)
        ends = {topic: dict(queues) for topic, queues in start.items() if topic in end}
        for topic, queues in end.items():
            ends.setdefault(topic, {}).update(queues)  # a queue that cannot be seen now keeps its offset
        return offsets.limit_offsets(start, ends, limit.max_rows) if isinstance(limit, ReadMaxRows) else ends

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        most = self._options.trigger_messages
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the current end offsets, for the query's progress report."""
        return offsets.list_end_offsets(self._read_bounds(), self._options.topics)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Make the current end offsets the limit of this run."""
        self._target = offsets.list_end_offsets(self._read_bounds(), self._options.topics)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges, losses = offsets.plan_ranges(
            start, end, self._read_bounds(), self._options.partition_messages
        )
        for loss in losses:
            report_loss(loss, self._options.fail_on_loss)
            self._lost += loss.count
        if losses:
            log.warning("%d messages lost by this query so far", self._lost, extra={"count": self._lost})
        return [RangePartition(offset_range) for offset_range in ranges]

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _open(self) -> RangeReader:
        if self._reader is None:
            self._reader = open_reader(self._options)
        return self._reader

    def _read_bounds(self) -> list[QueueBounds]:
        return self._open().bounds()
