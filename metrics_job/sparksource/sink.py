"""What Spark calls to write: rows of a DataFrame become messages, at least once.

Spark repeats a task, or after a crash a whole batch. No engine of this release recognises a repeated append
(backend/records.py, `idempotent`), so a repetition stores messages again; each says in property
`spark-batch` which row it was: QUERY/BATCH/PARTITION/ROW, the same in every repetition as long as the query
itself gives its rows in the same order. For a batch write QUERY is made anew by each write and BATCH is 0.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql import types as T  # noqa: N812 - the name everyone uses
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage

from ddmq_client import NotStoredError, OutgoingMessage, Producer, SendResult, UnknownOutcomeError
from metrics_job.sparksource.options import SourceOptionError, WriteError, WriteOptions, refuse_unknown

log = logging.getLogger("ddmq.spark")

BATCH_PROPERTY = "spark-batch"
CHUNK_ROWS = 500
PAUSE_S = (0.05, 1.0)  # before what was not stored is sent again: first, last
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"  # Spark's local properties of a task
TEXT: tuple[type[T.DataType], ...] = (T.StringType, T.BinaryType)
COLUMNS: Mapping[str, tuple[type[T.DataType], ...]] = {
    "value": TEXT,
    "topic": (T.StringType,),
    "key": TEXT,
    "tags": (T.StringType,),
    "properties": (T.MapType,),
    "queue": (T.IntegerType, T.LongType, T.ShortType),
}
OF_A_READ = {"offset", "message_id", "stored_at"}


@dataclass
class Written(WriterCommitMessage):
    """What one task did."""

    messages: int


class _Writer:
    """What both writers do. SourceOptionError for columns or a mode that cannot be written."""

    def __init__(
        self, options: WriteOptions, schema: T.StructType, overwrite: bool, query: str | None
    ) -> None:
        if overwrite:
            raise SourceOptionError(
                "format ddmq: messages are only ever added; use mode append (a stream: outputMode append or "
                "update)"
            )
        check_columns(schema, options)
        self._options = options
        self._query = query

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """On an executor: all rows of a partition, in their order. WriteError when some are not stored."""
        place = self._place()
        total = 0
        with Producer(
            self._options.servers,
            timeout_ms=self._options.timeout_ms,
            retry_unknown=True,
            selector="key",
            batch_messages=CHUNK_ROWS,
        ) as producer:
            while rows := list(islice(iterator, CHUNK_ROWS)):
                messages = [
                    outgoing(row, self._options.topic, f"{place}/{total + n}") for n, row in enumerate(rows)
                ]
                _store(producer, messages, self._options.timeout_ms)
                total += len(rows)
        return Written(total)

    def _place(self) -> str:
        """QUERY/BATCH/PARTITION of this task."""
        context = TaskContext.get()
        if context is None:
            raise WriteError("format ddmq: rows are written by tasks of Spark only")
        if self._query is not None:
            return f"{self._query}/0/{context.partitionId()}"
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        return f"{query}/{batch}/{context.partitionId()}"


class BatchWriter(_Writer, DataSourceWriter):
    """df.write: one write."""

    def __init__(self, options: WriteOptions, schema: T.StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite, uuid.uuid4().hex)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        log.info("batch written", extra={"messages": _count(messages)})

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """A task has failed for good: what the others stored stays."""
        stored = _count(messages)
        log.warning("write failed; %s messages of it are stored", stored, extra={"messages": stored})


class StreamWriter(_Writer, DataSourceStreamWriter):
    """df.writeStream: one write for each micro-batch."""

    def __init__(self, options: WriteOptions, schema: T.StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite, None)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log.info("micro-batch written", extra={"batch": batchId, "messages": _count(messages)})

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """A task has failed for good: what the others stored stays, and Spark repeats the batch."""
        told = {"batch": batchId, "messages": _count(messages)}
        log.warning(
            "micro-batch %(batch)d failed; %(messages)d messages of it are stored and will be again",
            told,
            extra=told,
        )


def check_columns(schema: T.StructType, options: WriteOptions) -> None:
    """SourceOptionError for a column that is missing, unknown, or of another type than can be written."""
    for field in schema.fields:
        if field.name in OF_A_READ:
            raise SourceOptionError(
                f"format ddmq: column {field.name!r} is given by the log and cannot be written; drop it"
            )
        if field.name not in COLUMNS:
            raise refuse_unknown(field.name, COLUMNS, "column", "writing")
        kinds = COLUMNS[field.name]
        if not isinstance(field.dataType, kinds):
            allowed = ", ".join(kind.typeName() for kind in kinds)
            raise SourceOptionError(
                f"format ddmq: column {field.name} is {field.dataType.simpleString()}; allowed: {allowed}"
            )
    if "value" not in schema.names:
        raise SourceOptionError(f"format ddmq: column value is missing; there are: {schema.names}")
    if "topic" not in schema.names and options.topic is None:
        raise SourceOptionError("format ddmq: give option topic, or a column topic")


def outgoing(row: Row, topic: str | None, place: str) -> OutgoingMessage:
    """One row as a message; WriteError for what no message can be."""
    given: dict[str, Any] = row.asDict()
    goes_to = topic or given.get("topic")
    if not goes_to or given["value"] is None:
        what = "value" if goes_to else "topic"
        raise WriteError(f"format ddmq: row {place} has no {what} (it is null); fill it or filter such rows")
    properties = {name: text for name, text in (given.get("properties") or {}).items() if text is not None}
    return OutgoingMessage(
        goes_to,
        given["value"] if isinstance(given["value"], str) else bytes(given["value"]),
        key=_key(given.get("key"), place),
        tags=given.get("tags"),
        properties=properties | {BATCH_PROPERTY: place},
        queue=given.get("queue"),
    )


def _key(given: Any, place: str) -> str | None:
    if given is None or isinstance(given, str):
        return given
    try:
        return bytes(given).decode()
    except UnicodeDecodeError as error:
        raise WriteError(f"format ddmq: the key of row {place} is no UTF-8: {error}") from error


def _store(producer: Producer, messages: Sequence[OutgoingMessage], timeout_ms: int) -> None:
    """Send until all are stored; WriteError at once for what cannot be, or when the time is up."""
    give_up_at = time.monotonic() + timeout_ms / 1000
    pause = PAUSE_S[0]
    while True:
        results = producer.send_batch(messages)
        left = [message for message, result in zip(messages, results, strict=True) if not result.stored]
        if not left:
            return
        bad = next(result for result in results if not result.stored)
        if not _worth_again(results) or time.monotonic() + pause > give_up_at:
            raise WriteError(f"{len(left)} of {len(messages)} messages were not stored, first: {bad.error}")
        time.sleep(pause)
        pause, messages = min(2 * pause, PAUSE_S[1]), left


def _worth_again(results: Sequence[SendResult]) -> bool:
    return all(
        result.stored or isinstance(result.error, NotStoredError | UnknownOutcomeError) for result in results
    )


def _count(messages: Sequence[WriterCommitMessage | None]) -> int:
    return sum(each.messages for each in messages if isinstance(each, Written))
