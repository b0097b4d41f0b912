"""One partition read: a range of one queue to Arrow record batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812 - the name everyone uses

from ddmq_client import FetchedQueue, Message, RangeReader
from metrics_job.sparksource.errors import DataLossError, SourceError
from metrics_job.sparksource.offsets import Loss, Span
from metrics_job.sparksource.options import ReadOptions

log = logging.getLogger("ddmq.spark")

BATCH_ROWS = 10_000
BATCH_BYTES = 8 * 1024 * 1024
FETCH_MESSAGES = 1_000  # of one answer; the subscription's limit holds too
LINGER_MS = 100
SCHEMA = T.StructType(
    [
        T.StructField("topic", T.StringType(), False),
        T.StructField("queue", T.IntegerType(), False),
        T.StructField("offset", T.LongType(), False),
        T.StructField("key", T.BinaryType()),
        T.StructField("value", T.BinaryType(), False),
        T.StructField("tags", T.StringType()),
        T.StructField("message_id", T.StringType()),
        T.StructField("properties", T.MapType(T.StringType(), T.StringType())),
        T.StructField("stored_at", T.TimestampType()),
    ]
)
ARROW = pa.schema(
    [
        pa.field("topic", pa.string(), False),
        pa.field("queue", pa.int32(), False),
        pa.field("offset", pa.int64(), False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), False),
        pa.field("tags", pa.string()),
        pa.field("message_id", pa.string()),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
        pa.field("stored_at", pa.timestamp("us", tz="UTC")),
    ]
)


def open_reader(options: ReadOptions) -> RangeReader:
    """A reader of the topics of `options`; it connects with its first call."""
    return RangeReader(options.servers, options.group, options.topics, timeout_ms=options.timeout_ms)


def lost(loss: Loss, fail: bool) -> None:
    """Raise DataLossError, or say it in the log."""
    if fail:
        raise DataLossError(
            f"{loss}. To go on without them set option failOnDataLoss to false; to keep messages longer see "
            "docs/retention.md"
        )
    log.warning("%d messages lost: %s", loss.count, loss, extra={"count": loss.count})


def read_span(options: ReadOptions, span: Span) -> Iterator[Any]:
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


def _parts(reader: RangeReader, options: ReadOptions, span: Span) -> Iterator[Sequence[Message]]:
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


def _loss(found: FetchedQueue, offset: int, span: Span) -> Loss | None:
    """What of `[offset, span.end)` this answer shows to be gone."""
    if found.next_offset < offset:
        return Loss(span.topic, span.number, offset, span.end, "the queue ends before them now")
    first = found.first_offset or 0
    oldest = found.messages[0].offset if found.messages else found.next_offset
    if first <= offset or oldest < first:
        return None
    return Loss(span.topic, span.number, offset, min(first, span.end), "retention removed them meanwhile")


def _batch(span: Span, rows: Sequence[Message]) -> Any:
    count = len(rows)
    columns = [
        pa.repeat(pa.scalar(span.topic, pa.string()), count),
        pa.repeat(pa.scalar(span.number, pa.int32()), count),
        pa.array([row.offset for row in rows], pa.int64()),
        pa.array([None if row.key is None else row.key.encode() for row in rows], pa.binary()),
        pa.array([row.body for row in rows], pa.binary()),
        pa.array([row.tags for row in rows], pa.string()),
        pa.array([row.message_id for row in rows], pa.string()),
        pa.array([list((row.properties or {}).items()) for row in rows], ARROW.field("properties").type),
        pa.array(
            [None if row.stored_ms is None else row.stored_ms * 1000 for row in rows],
            pa.timestamp("us", tz="UTC"),
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW)
