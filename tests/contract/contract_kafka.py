"""The Kafka engine on a real broker, and what of the contract it cannot be asked, each with the reason.

It needs Java, or a broker that runs (tests/support/kafka.py).
"""

from __future__ import annotations

import time
from typing import ClassVar

from confluent_kafka.admin import AdminClient
from contract_kit import Engine, KitClock

from backend.kafka.backend import KafkaBackend
from backend.kafka.options import KafkaOptions
from tests.support.kafka import broker, fresh_name
from tests.support.waits import until

_NO_FIND = "Kafka keeps no index by key or message id: the capability find_by_key is off"
_NO_CLOCK = "the broker stamps records with its own clock, which no test can move"
_NO_ORDER = "Kafka has no position over all topics: the capability topic_order is off"
# Tests by name; all others run.
NOT_ON_KAFKA = {
    "test_positions_order_all_topics": _NO_ORDER,
    "test_the_first_offset_at_or_after_a_time": _NO_CLOCK,
    "test_times_are_per_queue": _NO_CLOCK,
    "test_store_time_never_goes_back": _NO_CLOCK,
    "test_the_store_s_clock_follows_the_wall": _NO_CLOCK,
    "test_by_key_newest_first": _NO_FIND,
    "test_by_message_id": _NO_FIND,
    "test_an_id_that_stands_twice_is_found_twice": _NO_FIND,
    "test_other_topics_with_the_same_key_stay_out": _NO_FIND,
    "test_what_is_not_there_is_not_found": _NO_FIND,
    "test_what_was_just_answered_is_found": _NO_FIND,
    "test_everything_is_found_again": _NO_FIND,
}


class BrokerClock(KitClock):
    """The real time: what a test sets is not what the broker stamps."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class KafkaEngine(Engine):
    """A namespace, and a prefix of topics, of its own on the broker of the run."""

    persists: ClassVar[bool] = True
    batches_whole: ClassVar[bool] = False
    stamps: ClassVar[bool] = False
    gapless: ClassVar[bool] = False
    name = ""

    def open(self) -> None:
        if not self.name:
            self.name = fresh_name()
            self.clock = BrokerClock()
        options = KafkaOptions(broker(), namespace=self.name, topic_prefix=self.name + ".")
        self.backend = KafkaBackend(options, self.clock)
        until(lambda: self.backend.health().ready, lambda: self.backend.health().reason)

    def close(self) -> None:
        """Nothing is left: with thousands of partitions the broker of the run would do little else."""
        super().close()
        admin = AdminClient({"bootstrap.servers": broker()})
        mine = [name for name in admin.list_topics(timeout=30).topics if name.startswith(self.name + ".")]
        if mine:
            for deleted in admin.delete_topics(mine, request_timeout=30).values():
                deleted.exception(30)
