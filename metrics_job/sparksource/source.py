"""What Spark calls to read: DdmqSource, its batch reader and its stream reader.

The stream reader lives in one process of the driver as long as the query; `read` runs on executors, from a
pickled copy without a connection. Places live in Spark's checkpoint alone: the proxies keep none, and a
batch that Spark repeats is read again by the same offsets.
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
from metrics_job.sparksource.offsets import Loss, OffsetRange, Places
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
    """A reader of the topics of `options`; it connects with its first call."""
    return RangeReader(options.servers, options.group, options.topics, timeout_ms=options.timeout_ms)


def lost(loss: Loss, fail: bool) -> None:
    if fail:
        raise DataLossError(
            f"{loss}. To go on without them set option failOnDataLoss to false; to keep messages longer see "
            "docs/retention.md"
        )
    log.warning("%d messages lost: %s", loss.count, loss, extra={"count": loss.count})


def read_span(options: ReadOptions, span: OffsetRange) -> Iterator[Any]:
    """The messages of `span` as record batches of SCHEMA; DataLossError, SourceError, ddmq_client errors."""
    with open_reader(options) as reader:
        rows: list[Message] = []
        size = 0
        for messages in _parts(reader, options, span):
            rows += messages
            size += sum(len(message.body) for message in messages)
            if len(rows) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield _batch(span, rows)
                rows, size = [], 0
        if rows:
            yield _batch(span, rows)


def _parts(reader: RangeReader, options: ReadOptions, span: OffsetRange) -> Iterator[Sequence[Message]]:
    offset = span.start
    give_up_at = time.monotonic() + options.timeout_ms / 1000
    while offset < span.end:
        wanted = min(span.end - offset, FETCH_MESSAGES)
        found = reader.read(span.topic, span.name, offset, wanted, LINGER_MS)
        loss = _loss(found, offset, span)
        if loss is not None:
            lost(loss, options.fail_on_loss)
        if found.next_offset < offset:
            return  # the queue has shrunk: said above
        yield [message for message in found.messages if message.offset < span.end]
        if found.next_offset > offset:
            offset = found.next_offset
            give_up_at = time.monotonic() + options.timeout_ms / 1000
        elif time.monotonic() > give_up_at:
            raise SourceError(
                f"queue {span.number} of topic {span.topic} gave nothing at offset {offset} for "
                f"{options.timeout_ms} ms, although it ends at {found.end_offset}: see the proxy's log"
            )


def _loss(found: FetchedQueue, offset: int, span: OffsetRange) -> Loss | None:
    """What of `[offset, span.end)` this answer shows to be gone."""
    if found.next_offset < offset:
        return Loss(span.topic, span.number, offset, span.end, "the queue ends before them now")
    first = found.first_offset or 0
    oldest = found.messages[0].offset if found.messages else found.next_offset
    if first <= offset or oldest < first:
        return None
    return Loss(span.topic, span.number, offset, min(first, span.end), "retention removed them meanwhile")


def _batch(span: OffsetRange, rows: Sequence[Message]) -> Any:
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
    place = pa.repeat(pa.scalar(span.topic), count), pa.repeat(pa.scalar(span.number, pa.int32()), count)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, ARROW.types[2:], strict=True)]
    return pa.RecordBatch.from_arrays([*place, *arrays], schema=ARROW)


class RangePartition(InputPartition):
    """A range of one queue, for one task."""

    def __init__(self, span: OffsetRange) -> None:
        super().__init__(None)
        self.span = span


class DdmqSource(DataSource):
    """The format `ddmq`; see docs/spark.md for its options."""

    @classmethod
    def name(cls) -> str:
        return "ddmq"

    def schema(self) -> T.StructType:
        """Columns of a read; options that are wrong are told here already."""
        read_options(self.options)
        return SCHEMA

    def reader(self, schema: T.StructType) -> DataSourceReader:
        return BatchReader(_checked(self.options, schema))

    def streamReader(self, schema: T.StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return StreamReader(_checked(self.options, schema))

    def writer(self, schema: T.StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(write_options(self.options), schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: T.StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        return StreamWriter(write_options(self.options), schema, overwrite)


def _checked(given: Any, schema: T.StructType) -> ReadOptions:
    if schema != SCHEMA:
        raise SourceOptionError(
            "format ddmq: it has a schema of its own; leave .schema(…) out and select afterwards"
        )
    return read_options(given)


def places(reader: RangeReader, where: Where, bounds: Sequence[QueueBounds], option: str) -> Places:
    """Where `where` is in every queue; times are looked up."""
    if where.time_ms is None:
        return offsets.fixed(where, bounds, option)
    found: Places = {}
    for at in bounds:
        found.setdefault(at.topic, {})[str(at.number)] = reader.offset_at(at, where.time_ms)
    return found


class _SpanReader:
    """What both readers do."""

    _options: ReadOptions

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_span(self._options, partition.span) if isinstance(partition, RangePartition) else iter(())


class BatchReader(_SpanReader, DataSourceReader):
    """One read from a place to a place, both looked up when Spark plans it."""

    def __init__(self, options: ReadOptions) -> None:
        if options.trigger_messages is not None:
            raise SourceOptionError("format ddmq: option maxMessagesPerTrigger is for streams only")
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of queues; SourceOptionError for a topic that does not exist, DataLossError."""
        options = self._options
        with open_reader(options) as reader:
            bounds = reader.bounds()
            missing = set(options.topics) - {at.topic for at in bounds}
            if missing:
                raise SourceOptionError(
                    f"format ddmq: topics {sorted(missing)} do not exist, or group {options.group} may not "
                    "read them; create them, or name others in option topic or topics"
                )
            start = places(reader, options.start or Where(edge="first"), bounds, "startingOffsets")
            end = places(reader, options.end or Where(edge="last"), bounds, "endingOffsets")
        end = offsets.not_before(end, start, bounds)
        found, losses = offsets.spans(start, end, bounds, options.partition_messages)
        for loss in losses:
            lost(loss, options.fail_on_loss)
        return [RangePartition(span) for span in found]


class StreamReader(_SpanReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream from a place on, without end."""

    def __init__(self, options: ReadOptions) -> None:
        if options.end is not None:
            raise SourceOptionError(
                "format ddmq: option endingOffsets is for batches only: a stream has no end"
            )
        self._options = options
        self._reader: RangeReader | None = None
        self._target: Places | None = None
        self._lost = 0  # offsets, since this query was started

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_reader": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint starts."""
        bounds = self._bounds()
        start = self._options.start or Where(edge="last")
        found = places(self._open(), start, bounds, "startingOffsets")
        return {topic: found.get(topic, {}) for topic in self._options.topics}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Behind the last message there is, or as far as `limit` allows."""
        end = offsets.ends(self._bounds(), self._options.topics)
        if self._target is not None:
            end = offsets.not_past(end, self._target)
        kept = {topic: dict(queues) for topic, queues in start.items() if topic in end}
        for topic, queues in end.items():
            kept.setdefault(topic, {}).update(queues)  # a queue that cannot be seen now keeps its place
        return offsets.limited(start, kept, limit.max_rows) if isinstance(limit, ReadMaxRows) else kept

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        most = self._options.trigger_messages
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """For the query's progress: how far it could be."""
        return offsets.ends(self._bounds(), self._options.topics)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """What comes after now is not read by this run."""
        self._target = offsets.ends(self._bounds(), self._options.topics)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        found, losses = offsets.spans(start, end, self._bounds(), self._options.partition_messages)
        for loss in losses:
            lost(loss, self._options.fail_on_loss)
            self._lost += loss.count
        if losses:
            log.warning("%d messages lost by this query so far", self._lost, extra={"count": self._lost})
        return [RangePartition(span) for span in found]

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _open(self) -> RangeReader:
        if self._reader is None:
            self._reader = open_reader(self._options)
        return self._reader

    def _bounds(self) -> list[QueueBounds]:
        return self._open().bounds()
