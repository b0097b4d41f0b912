"""Create Dramatiq queues, count their unfinished messages, and drop them, through the admin port."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import dramatiq

from ddmq_client.core.nodes import parse_addresses
from ddmq_client.errors import AdminError
from ddmq_client.idl.codes import ADMIN_PORT
from ddmq_client.net.admin.client import Admin

_log = logging.getLogger("ddmq_client.dramatiq")
TIMEOUT_MS = 10_000
DELAYS_MAX = 1_000_000  # dropped by one flush
# Dramatiq counts retries itself; this bounds the deliveries of a keyed message that ends each of its workers.
DELIVERIES_MAX = 100


class QueueAdmin:
    """The admin port of one server. A queue has a topic and a group, both of the same name."""

    def __init__(self, address: str) -> None:
        """Store the address, HOST or HOST:PORT. Raises OptionError if it is neither."""
        parse_addresses(address, ADMIN_PORT, "admin")
        self._address = address
        self._created: set[str] = set()

    @contextmanager
    def _connect(self) -> Iterator[Admin]:
        """Yield a client for one task: a process that Dramatiq forks cannot use a connection of its parent.

        Raises ConnectionFailed for a request that fails.
        """
        try:
            with Admin(self._address, timeout_ms=TIMEOUT_MS) as admin:
                yield admin
        except AdminError as error:
            raise dramatiq.ConnectionFailed(str(error)) from error

    def create_queue_once(self, name: str) -> None:
        """Create the queue unless this object has done so before."""
        if name not in self._created:
            self.create_queue(name)

    def create_queue(self, name: str) -> None:
        """Create the topic and the group if they do not exist; warn if an existing group is not ordered by
        key."""
        with self._connect() as admin:
            admin.create_topic(name, exist_ok=True)
            group = admin.create_group(
                name,
                name,
                start="first",
                order_key="KEY",
                order_scope="topic",
                ordered_deliveries_max=DELIVERIES_MAX,
            )
        self._created.add(name)
        for subscription in group.subscriptions:
            if subscription.topic == name and subscription.order_key != "KEY":
                _log.warning(
                    "group %s exists without order_key KEY, so messages with ddmq_key have no order; "
                    "`ddmq group set %s --topic %s --order-key KEY` sets it", name, name, name,
                )  # fmt: skip

    def count_unfinished(self, name: str) -> int:
        """Return how many messages wait, are being handled, are retried, or are delayed."""
        with self._connect() as admin:
            delayed = admin.count_delays(topic=name).count
            group = admin.get_group(name)
        return delayed + sum(
            subscription.lag
            + subscription.retrying
            + subscription.in_flight
            + (subscription.retry_waiting or 0)
            for subscription in group.subscriptions
        )

    def skip_waiting(self, name: str) -> None:
        """Move the group behind the last message of its topic."""
        with self._connect() as admin:
            admin.reset_offsets(name, name, "last")

    def list_delayed(self, name: str) -> list[str]:
        """Return the delay ids of the topic's delayed messages."""
        with self._connect() as admin:
            return [message.delay_id for message in admin.list_delays(topic=name, limit=DELAYS_MAX)]

    def count_dead_letters(self, name: str) -> int:
        """Return how many dead letters of the group are open."""
        with self._connect() as admin:
            return admin.get_group(name).dead_letters

    def purge_dead_letters(self, name: str) -> None:
        """Discard the group's dead letters."""
        with self._connect() as admin:
            admin.purge_dead_letters(name)
