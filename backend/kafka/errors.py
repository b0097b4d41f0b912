"""Kafka's errors as this project's, by who must act; the broker's reason stays in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from backend.kafka.options import KafkaOptions
from backend.records import AppendResult, AppendStatus, Durability
from ddmq_common.errors import (
    CallerError,
    ConfigError,
    DdmqError,
    RemoteError,
    StorageError,
    TryLaterError,
    UnknownTopicError,
)

_MOMENT = re.compile(r" \(after \d+ms in state \w+.*\)\Z")  # when it happened, which is another each time
_UNKNOWN_TOPIC_CODES = frozenset(
    (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,
     KafkaError.UNKNOWN_TOPIC_ID)
)  # fmt: skip
REJECTED_CODES = frozenset(
    (KafkaError.INVALID_REPLICATION_FACTOR, KafkaError.INVALID_CONFIG, KafkaError.TOPIC_EXCEPTION,
     KafkaError.INVALID_PARTITIONS, KafkaError.POLICY_VIOLATION, KafkaError.MSG_SIZE_TOO_LARGE,
     KafkaError.INVALID_RECORD, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_TIMESTAMP)
)  # fmt: skip
_OPERATOR = frozenset(
    (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED,
     KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.KAFKA_STORAGE_ERROR,
     KafkaError._SSL)
)  # fmt: skip
PURGED_CODES = frozenset((KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT))
_CREDENTIALS = frozenset((KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL))
_SILENT = frozenset((KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN))
# A group's coordinator at this moment: what a consumer's commit raises is never marked as `retriable()`.
_PASSING = _SILENT | {
    KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.REQUEST_TIMED_OUT, KafkaError._WAIT_COORD,
}  # fmt: skip
TOO_LARGE = frozenset((KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE))
# Errors that a new survey of the topic foresees: its settings, or the rights to write to it, were changed.
REFRESH_TOPIC_CODES = TOO_LARGE | {KafkaError.INVALID_RECORD, KafkaError.TOPIC_AUTHORIZATION_FAILED}
_LATER = frozenset(
    (KafkaError.NOT_ENOUGH_REPLICAS, KafkaError._QUEUE_FULL, KafkaError.THROTTLING_QUOTA_EXCEEDED,
     KafkaError._INVALID_DIFFERENT_RECORD)  # another record of its batch is invalid
)  # fmt: skip
RAISED = (KafkaException, SystemError)  # by a call that serves reports: see `cause_of`


def closed_producer_error() -> KafkaException:
    """Return the error of a call to a producer that was ended here."""
    return KafkaException(KafkaError(KafkaError._PURGE_QUEUE))


def cause_of(error: Exception) -> KafkaError:
    """Return the KafkaError behind an exception that confluent-kafka raised.

    Re-raise the exception if there is none. A call that serves callbacks may raise a fatal error of the
    client. If it then runs another callback, that one sees the exception already set, fails with a
    SystemError, and the SystemError is raised instead.
    """
    raised: BaseException | None = error
    while raised is not None and not isinstance(raised, KafkaException):
        raised = raised.__cause__
    if raised is None:
        raise error
    cause: KafkaError = raised.args[0]
    return cause


def kafka_error(error: BaseException | KafkaError) -> KafkaError | None:
    """Return the KafkaError inside an exception; None if there is none."""
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0]
    return error if isinstance(error, KafkaError) else None


def to_ddmq_error(error: BaseException | KafkaError, what: str) -> Exception:
    """Convert the error of a failed operation `what`; an error that is not Kafka's is returned unchanged."""
    if isinstance(error, DdmqError):
        return error
    cause = kafka_error(error)
    if cause is None:
        return error if isinstance(error, Exception) else RemoteError(f"{what}: {error}")
    code, text = cause.code(), f"{what}: Kafka says {cause.str()}"
    if code in _UNKNOWN_TOPIC_CODES:
        return UnknownTopicError(text)
    if code in REJECTED_CODES:
        return CallerError(text)
    if code in _OPERATOR:
        return StorageError(text)
    if code in _LATER:
        return TryLaterError(text)
    return RemoteError(text)


@contextmanager
def client_settings(options: KafkaOptions) -> Iterator[None]:
    """Convert librdkafka's rejection of a client's settings into a ConfigError, inside the `with` block."""
    try:
        yield
    except KafkaException as error:
        reason = options.mask_secrets(error.args[0].str())
        raise ConfigError(f"kafka: librdkafka does not take its settings: {reason}") from error


class LastError:
    """The `error_cb` of a client: records why the client cannot reach the brokers.

    A call that timed out does not say so itself.

    It is called in the thread that serves the client (for an admin client, the thread that polls it). An
    error about credentials takes precedence over connection errors.
    """

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._last = ""
        self._credentials_error = ""

    def __call__(self, error: KafkaError) -> None:
        text = _MOMENT.sub("", self._options.mask_secrets(error.str()))
        if error.code() in _CREDENTIALS:
            self._credentials_error = text
        elif error.code() != KafkaError._ALL_BROKERS_DOWN or not self._last:
            self._last = text

    def clear(self) -> None:
        """Forget the last errors, because the brokers answer."""
        self._last = self._credentials_error = ""

    def reason_for(self, error: BaseException) -> str:
        """Return why a call failed, in one line."""
        cause, tokens = kafka_error(error), self._options.loaded_provider
        if (
            cause is not None
            and cause.code() in _SILENT | _CREDENTIALS
            and tokens is not None
            and tokens.waiting_reason
        ):
            return f"the token provider {tokens.waiting_reason}"
        if cause is not None and cause.code() in _SILENT:
            return self._credentials_error or self._last or self._options.mask_secrets(cause.str())
        return self._options.mask_secrets(str(error) if cause is None else cause.str())


def is_unknown_topic(error: BaseException | KafkaError) -> bool:
    """Return whether the error means that the topic or partition does not exist."""
    cause = kafka_error(error)
    return cause is not None and cause.code() in _UNKNOWN_TOPIC_CODES


def is_temporary(error: BaseException | KafkaError) -> bool:
    """Return whether the error only means that a group's coordinator could not be reached at the moment."""
    cause = kafka_error(error)
    return cause is not None and cause.code() in _PASSING


def has_code(error: BaseException | KafkaError, code: int) -> bool:
    """Return whether the error is the Kafka error with this code."""
    cause = kafka_error(error)
    return cause is not None and cause.code() == code


def to_failed_result(error: Exception, status: AppendStatus = AppendStatus.REFUSED) -> AppendResult:
    """Return the result of a record that is not stored, or with status UNKNOWN may be stored."""
    return AppendResult(status, -1, Durability.WRITTEN, error)


def to_undelivered_result(error: KafkaError, topic: str, size: int, size_max: int) -> AppendResult:
    """Convert the error in a record's delivery report into the result of its append."""
    code = error.code()
    if code in TOO_LARGE and size > size_max:
        text = f"topic {topic}: a record of {size} bytes; Kafka takes at most {size_max} there"
        return to_failed_result(CallerError(f"{text} (max.message.bytes)"))
    if code in TOO_LARGE:  # the batch that it was in, or the bound was lowered a moment ago
        text = (
            f"topic {topic}: Kafka refused a batch with a record of {size} bytes as too large; send it again"
        )
        return to_failed_result(TryLaterError(text), AppendStatus.NOT_STORED)
    if code in PURGED_CODES:  # what waits in the line may have been sent before, and waits to be sent again
        text = f"topic {topic}: it was on its way when its producer ended; it may be stored or not"
        return to_failed_result(RemoteError(text), AppendStatus.UNKNOWN)
    translated = to_ddmq_error(error, f"topic {topic}")
    if code in _UNKNOWN_TOPIC_CODES or code in REJECTED_CODES:
        return to_failed_result(translated)
    if code in _LATER or code in _OPERATOR:
        return to_failed_result(translated, AppendStatus.NOT_STORED)
    return to_failed_result(translated, AppendStatus.UNKNOWN)
