"""The writers that Spark calls: each row of a DataFrame becomes a message, at least once, or exactly once
where idempotency keys are accepted.

Spark repeats a task, or after a crash a whole batch. Each message says in property `spark-batch` which row
it was: QUERY/BATCH/PARTITION/ROW, the same in every repetition as long as the query itself gives its rows in
the same order. For a batch write QUERY is new for each write and BATCH is 0. With a digest of the row
behind it, that is the message's idempotency key: a repeated row is not stored twice, and a row that
replaces another one is another message.

Engines that cannot do it refuse keys (code 11), and so many keys are remembered and no more (15). Unless the
application insists (`storeOnce`), a task then goes on without them, and says so.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import islice
from typing import Any

from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql import types as T  # noqa: N812 - the name everyone uses
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage

from ddmq_client import (
    InvalidMessageError,
    NotStoredError,
    OutgoingMessage,
    Producer,
    SendResult,
    ThrottledError,
    UnknownOutcomeError,
)
from ddmq_client.idl.codes import IDEMPOTENCY_KEY
from metrics_job.sparksource.connecting import build_client_security
from metrics_job.sparksource.options import (
    SourceOptionError,
    StoreOnce,
    WriteError,
    WriteOptions,
    build_unknown_error,
)

log = logging.getLogger("ddmq.spark")

BATCH_PROPERTY = "spark-batch"
CHUNK_ROWS = 500
DIGEST_BYTES = 8
PAUSE_S = (0.05, 1.0)  # before messages that were not stored are retried: first, last
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
    """The message of one task to the driver: how many messages it has stored."""

    messages: int


class _Writer:
    """Stores the rows of a DataFrame as messages: the common base of the batch writer and the stream writer.

    Raises SourceOptionError for columns or a mode that cannot be written.
    """

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
        """Store all rows of a partition in order, on an executor.

        Raises WriteError if some are not stored.
        """
        task_name, keyed = self._build_task_name()
        total = 0
        with Producer(
            self._options.servers,
            timeout_ms=self._options.timeout_ms,
            retry_unknown=True,
            selector="key",
            batch_messages=CHUNK_ROWS,
            **build_client_security(self._options.security),
        ) as producer:
            store = RowStore(producer, self._options.timeout_ms, self._options.store_once, keyed)
            while rows := list(islice(iterator, CHUNK_ROWS)):
                store.store_rows(
                    [
                        to_message(row, self._options.topic, f"{task_name}/{total + n}")
                        for n, row in enumerate(rows)
                    ]
                )
                total += len(rows)
        return Written(total)

    def _build_task_name(self) -> tuple[str, bool]:
        """Return the name QUERY/BATCH/PARTITION of this task, and whether it is unique."""
        context = TaskContext.get()
        if context is None:
            raise WriteError("format ddmq: rows are written by tasks of Spark only")
        if self._query is not None:
            return f"{self._query}/0/{context.partitionId()}", True
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        return f"{query}/{batch}/{context.partitionId()}", query is not None and batch is not None


class BatchWriter(_Writer, DataSourceWriter):
    """The writer for `df.write`: a single write."""

    def __init__(self, options: WriteOptions, schema: T.StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite, uuid.uuid4().hex)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        log.info("batch written", extra={"messages": _count_messages(messages)})

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log that a task has failed permanently. Messages of the other tasks stay stored."""
        stored = _count_messages(messages)
        log.warning("write failed; %s messages of it are stored", stored, extra={"messages": stored})


class StreamWriter(_Writer, DataSourceStreamWriter):
    """The writer for `df.writeStream`: one write for each micro-batch."""

    def __init__(self, options: WriteOptions, schema: T.StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite, None)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log.info("micro-batch written", extra={"batch": batchId, "messages": _count_messages(messages)})

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log that a task has failed permanently. Stored messages stay, and Spark repeats the batch."""
        details = {"batch": batchId, "messages": _count_messages(messages)}
        log.warning(
            "micro-batch %(batch)d failed; %(messages)d messages of it are stored and will be again",
            details,
            extra=details,
        )


def check_columns(schema: T.StructType, options: WriteOptions) -> None:
    """Check the columns of the rows. Raises SourceOptionError for a missing, unknown or unsupported one."""
    for field in schema.fields:
        if field.name in OF_A_READ:
            raise SourceOptionError(
                f"format ddmq: column {field.name!r} is given by the log and cannot be written; drop it"
            )
        if field.name not in COLUMNS:
            raise build_unknown_error(field.name, COLUMNS, "column", "writing")
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


def to_message(row: Row, topic: str | None, row_name: str) -> OutgoingMessage:
    """Convert a row to a message. Raises WriteError for a row that cannot be a message."""
    values: dict[str, Any] = row.asDict()
    goes_to = topic or values.get("topic")
    if not goes_to or values["value"] is None:
        what = "value" if goes_to else "topic"
        raise WriteError(
            f"format ddmq: row {row_name} has no {what} (it is null); fill it or filter such rows"
        )
    properties = {name: text for name, text in (values.get("properties") or {}).items() if text is not None}
    return OutgoingMessage(
        goes_to,
        values["value"] if isinstance(values["value"], str) else bytes(values["value"]),
        key=_key_text(values.get("key"), row_name),
        tags=values.get("tags"),
        properties=properties | {BATCH_PROPERTY: row_name},
        queue=values.get("queue"),
    )


def _key_text(key: Any, row_name: str) -> str | None:
    if key is None or isinstance(key, str):
        return key
    try:
        return bytes(key).decode()
    except UnicodeDecodeError as error:
        raise WriteError(f"format ddmq: the key of row {row_name} is no UTF-8: {error}") from error


class RowStore:
    """Stores groups of rows for one task, with idempotency keys as long as the proxies accept them."""

    def __init__(self, producer: Producer, timeout_ms: int, once: StoreOnce, named: bool) -> None:
        """Create a store that uses `producer`, with idempotency keys if `named` and `once` permit them.

        `named`: the rows' names are unique to this task. Raises WriteError if keys are required but
        impossible.
        """
        if once == "true" and not named:
            raise WriteError("format ddmq: storeOnce=true, but Spark has told no id of the query and batch")
        self._producer = producer
        self._timeout_ms = timeout_ms
        self._timeout_s = timeout_ms / 1000
        self._insists = once == "true"
        self._keyed = named and once != "false"

    def store_rows(self, messages: Sequence[OutgoingMessage]) -> None:
        """Send messages until all are stored.

        Raises WriteError after the timeout, or at once for invalid messages.
        """
        start_s = time.monotonic()
        pause = PAUSE_S[0]
        remaining = [with_key(message) for message in messages] if self._keyed else list(messages)
        while True:
            results = self._producer.send_batch(remaining, timeout_ms=self._attempt_ms())
            bad = [result for result in results if not result.stored]
            if not bad:
                return
            total = len(remaining)
            remaining = [
                message for message, result in zip(remaining, results, strict=True) if not result.stored
            ]
            passed = time.monotonic() - start_s
            if self._keyed and not self._insists and _about_keys(bad, passed >= self._timeout_s / 2):
                self._go_on_without(bad[0])
                remaining = [replace(message, idempotency_key=None) for message in remaining]
                continue
            if not _is_worth_retry(results) or passed + pause > self._timeout_s:
                raise WriteError(
                    f"{len(remaining)} of {total} messages were not stored, first: {bad[0].error}"
                )
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_S[1])

    def _attempt_ms(self) -> int:
        """Return how long one send of the producer may take: half of the time if keys may have to be
        dropped."""
        return self._timeout_ms if self._insists or not self._keyed else max(1, self._timeout_ms // 2)

    def _go_on_without(self, bad: SendResult) -> None:
        self._keyed = False
        log.warning(
            "rows are written without idempotency keys, so repeated tasks store them again: %s",
            bad.error,
            extra={"error": str(bad.error)},
        )


def with_key(message: OutgoingMessage) -> OutgoingMessage:
    """Return the message with an idempotency key from its row's name, unless it has a key."""
    properties = message.properties or {}
    if IDEMPOTENCY_KEY in properties:
        return message
    row = (message.topic, message.key, message.tags, sorted(properties.items()), message.queue, message.body)
    digest = blake2b(repr(row).encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).hexdigest()
    return replace(message, idempotency_key=f"{properties[BATCH_PROPERTY]}/{digest}")


def _about_keys(bad: Sequence[SendResult], long: bool) -> bool:
    """Return whether proxies may have refused these messages because of their idempotency keys. `long`: they
    have been refused for long, so a lack of space for keys counts as well."""
    errors = [result.error for result in bad]
    return any(isinstance(error, InvalidMessageError) and error.proxy for error in errors) or (
        long and any(isinstance(error, ThrottledError) for error in errors)
    )


def _is_worth_retry(results: Sequence[SendResult]) -> bool:
    return all(
        result.stored or isinstance(result.error, NotStoredError | UnknownOutcomeError) for result in results
    )


def _count_messages(messages: Sequence[WriterCommitMessage | None]) -> int:
    return sum(each.messages for each in messages if isinstance(each, Written))
