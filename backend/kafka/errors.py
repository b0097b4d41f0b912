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
_GONE = frozenset(
    (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,
     KafkaError.UNKNOWN_TOPIC_ID)
)  # fmt: skip
WRONG = frozenset(
    (KafkaError.INVALID_REPLICATION_FACTOR, KafkaError.INVALID_CONFIG, KafkaError.TOPIC_EXCEPTION,
     KafkaError.INVALID_PARTITIONS, KafkaError.POLICY_VIOLATION, KafkaError.MSG_SIZE_TOO_LARGE,
     KafkaError.INVALID_RECORD, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_TIMESTAMP)
)  # fmt: skip
_OPERATOR = frozenset(
    (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED,
     KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.KAFKA_STORAGE_ERROR,
     KafkaError._SSL)
)  # fmt: skip
_PURGED = frozenset((KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT))
_CREDENTIALS = frozenset((KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL))
_SILENT = frozenset((KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN))
# A group's coordinator at this moment: what a consumer's commit raises is never marked as `retriable()`.
_PASSING = _SILENT | {
    KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.REQUEST_TIMED_OUT, KafkaError._WAIT_COORD,
}  # fmt: skip
TOO_LARGE = frozenset((KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE))
# What is foreseen once the topic was looked at again: its settings, or who may write to it, were changed.
SEEN_IN_TOPIC = TOO_LARGE | {KafkaError.INVALID_RECORD, KafkaError.TOPIC_AUTHORIZATION_FAILED}
_LATER = frozenset(
    (KafkaError.NOT_ENOUGH_REPLICAS, KafkaError._QUEUE_FULL, KafkaError.THROTTLING_QUOTA_EXCEEDED,
     KafkaError._INVALID_DIFFERENT_RECORD)  # another one of its batch is wrong: nothing of that is stored
)  # fmt: skip
RAISED = (KafkaException, SystemError)  # by a call that serves reports: see `cause_of`


def cause_of(error: Exception) -> KafkaError:
    """Why a call of confluent-kafka has failed.

    A fatal error comes out of whichever call serves it, not by `error_cb`. A report that the same call serves
    after it finds that exception set, whatever it does fails with a SystemError, and that is raised then.
    """
    raised: BaseException | None = error
    while raised is not None and not isinstance(raised, KafkaException):
        raised = raised.__cause__
    if raised is None:
        raise error
    found: KafkaError = raised.args[0]
    return found


def kafka_error(error: BaseException | KafkaError) -> KafkaError | None:
    """The error of Kafka's inside an exception; None for any other."""
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0]
    return error if isinstance(error, KafkaError) else None


def translated(error: BaseException | KafkaError, what: str) -> Exception:
    """For `what` that failed; what is none of Kafka's errors comes back as it is."""
    if isinstance(error, DdmqError):
        return error
    found = kafka_error(error)
    if found is None:
        return error if isinstance(error, Exception) else RemoteError(f"{what}: {error}")
    code, text = found.code(), f"{what}: Kafka says {found.str()}"
    if code in _GONE:
        return UnknownTopicError(text)
    if code in WRONG:
        return CallerError(text)
    if code in _OPERATOR:
        return StorageError(text)
    if code in _LATER:
        return TryLaterError(text)
    return RemoteError(text)


@contextmanager
def client_settings(options: KafkaOptions) -> Iterator[None]:
    """Around what makes the first client: what librdkafka does not take of its settings is a ConfigError."""
    try:
        yield
    except KafkaException as error:
        said = options.masked(error.args[0].str())
        raise ConfigError(f"kafka: librdkafka does not take its settings: {said}") from error


class LastError:
    """The `error_cb` of a client: why it cannot reach the brokers, which a call that timed out does not say.

    It is called in whichever thread serves the client (an admin client: where it is polled). What a broker
    answered to credentials counts before that others cannot be reached.
    """

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._said = ""
        self._refused = ""

    def __call__(self, error: KafkaError) -> None:
        said = _MOMENT.sub("", self._options.masked(error.str()))
        if error.code() in _CREDENTIALS:
            self._refused = said
        elif error.code() != KafkaError._ALL_BROKERS_DOWN or not self._said:
            self._said = said

    def clear(self) -> None:
        """The brokers answer."""
        self._said = self._refused = ""

    def why(self, error: BaseException) -> str:
        """Why a call failed, in one line."""
        found = kafka_error(error)
        if found is not None and found.code() in _SILENT:
            return self._refused or self._said or self._options.masked(found.str())
        return self._options.masked(str(error) if found is None else found.str())


def is_gone(error: BaseException | KafkaError) -> bool:
    """Whether it says that there is no such topic or partition."""
    found = kafka_error(error)
    return found is not None and found.code() in _GONE


def is_passing(error: BaseException | KafkaError) -> bool:
    """Whether a group's coordinator could only not be asked at that moment."""
    found = kafka_error(error)
    return found is not None and found.code() in _PASSING


def has_code(error: BaseException | KafkaError, code: int) -> bool:
    """Whether it is this error of Kafka's."""
    found = kafka_error(error)
    return found is not None and found.code() == code


def refused(error: Exception, status: AppendStatus = AppendStatus.REFUSED) -> AppendResult:
    """The result of a record that is not stored, or of which that is not known."""
    return AppendResult(status, -1, Durability.WRITTEN, error)


def undelivered(error: KafkaError, topic: str, size: int, size_max: int) -> AppendResult:
    """What became of a record that Kafka reported with an error."""
    code = error.code()
    if code in TOO_LARGE and size > size_max:
        text = f"topic {topic}: a record of {size} bytes; Kafka takes at most {size_max} there"
        return refused(CallerError(f"{text} (max.message.bytes)"))
    if code in TOO_LARGE:  # the batch that it was in, or the bound was lowered a moment ago
        text = (
            f"topic {topic}: Kafka refused a batch with a record of {size} bytes as too large; send it again"
        )
        return refused(TryLaterError(text), AppendStatus.NOT_STORED)
    if code in _PURGED:  # what waits in the line may have been sent before, and waits to be sent again
        text = f"topic {topic}: it was on its way when its producer ended; it may be stored or not"
        return refused(RemoteError(text), AppendStatus.UNKNOWN)
    found = translated(error, f"topic {topic}")
    if code in _GONE or code in WRONG:
        return refused(found)
    if code in _LATER or code in _OPERATOR:
        return refused(found, AppendStatus.NOT_STORED)
    return refused(found, AppendStatus.UNKNOWN)
