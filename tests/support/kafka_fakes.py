"""What librdkafka gives to the callbacks of a producer, for fakes of it."""

from __future__ import annotations

from confluent_kafka import KafkaError

PURGED = KafkaError(-151)  # as librdkafka numbers it: purged in flight


class StoredMessage:
    """A message of a delivery report, stored at `offset` with the time stamp 1,000."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 2, 1_000
