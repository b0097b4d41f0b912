"""Create Dramatiq queues, count their unfinished messages, and drop them, through the admin port."""

from __future__ import annotations

import http.client
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import dramatiq

from ddmq_client.core.nodes import parse_addresses
from ddmq_client.printable import printable

_log = logging.getLogger("ddmq_client.dramatiq")
DEFAULT_ADMIN_PORT = 9813
TIMEOUT_S = 10.0
PAGE = 1_000
# Dramatiq counts retries itself; this bounds the deliveries of a keyed message that ends each of its workers.
DELIVERIES_MAX = 100


class QueueAdmin:
    """The admin port of one server. A queue has a topic and a group, both of the same name."""

    def __init__(self, address: str) -> None:
        """`address` is HOST or HOST:PORT; OptionError if it is neither."""
        (self._address,) = parse_addresses([address], DEFAULT_ADMIN_PORT)
        self._created: set[str] = set()

    def create_queue_once(self, name: str) -> None:
        """Create the queue unless this object has done so before."""
        if name not in self._created:
            self.create_queue(name)

    def create_queue(self, name: str) -> None:
        """Create the topic and the group that are absent; warn if an existing group keeps no order by key."""
        if not self._has_topic(name):
            status, answer = self._send_request("POST", ("topics", name), {})
            if status != http.client.OK and not self._has_topic(name):  # nor has another worker created it
                raise dramatiq.ConnectionFailed(f"topic {name} is not created: {_get_error(answer)}")
        settings = {
            "topics": [name],
            "start": "first",
            "order_key": "KEY",
            "order_scope": "topic",
            "ordered_deliveries_max": DELIVERIES_MAX,
        }
        group = self._post_json(("groups", name), settings)
        self._created.add(name)
        for subscription in group.get("subscriptions", ()):
            if subscription.get("topic") == name and subscription.get("order_key") != "KEY":
                _log.warning(
                    "group %s exists without order_key KEY, so messages with ddmq_key have no order; "
                    "`ddmq group set %s --topic %s --order-key KEY` sets it", name, name, name,
                )  # fmt: skip

    def count_unfinished(self, name: str) -> int:
        """Return how many messages wait, are being handled, are retried, or are delayed."""
        delayed: int = self._get_json(("delay", "count"), f"?topic={_quote_text(name)}")["count"]
        group = self._get_json(("groups", name))
        counts: list[int] = [
            subscription[field] or 0
            for subscription in group.get("subscriptions", ())
            for field in ("lag", "retrying", "in_flight", "retry_waiting")
        ]
        return delayed + sum(counts)

    def skip_waiting(self, name: str) -> None:
        """Move the group behind the last message of its topic."""
        self._post_json(("groups", name, "offsets"), {"topic": name, "to": "last"})

    def list_delayed(self, name: str) -> Iterator[str]:
        """Yield the delay ids of the topic's delayed messages."""
        after = ""
        while True:
            query = f"?topic={_quote_text(name)}&count={PAGE}" + (
                f"&after={_quote_text(after)}" if after else ""
            )
            page = self._get_json(("delay", "messages"), query)
            yield from (message["id"] for message in page["messages"])
            after = page.get("next") or ""
            if not after:
                return

    def count_dead_letters(self, name: str) -> int:
        """Return how many dead letters of the group are open."""
        count: int = self._get_json(("dlq", name))["letters"]
        return count

    def purge_dead_letters(self, name: str) -> None:
        """Discard the group's dead letters."""
        self._post_json(("dlq", name, "purge"), {"all": True})

    def _has_topic(self, name: str) -> bool:
        return self._send_request("GET", ("topics", name))[0] == http.client.OK

    def _get_json(self, path: tuple[str, ...], query: str = "") -> Any:
        return _read_answer(*self._send_request("GET", path, query=query))

    def _post_json(self, path: tuple[str, ...], body: Mapping[str, Any]) -> Any:
        return _read_answer(*self._send_request("POST", path, body))

    def _send_request(
        self, method: str, path: tuple[str, ...], body: Mapping[str, Any] | None = None, query: str = ""
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self._address.host, self._address.port, timeout=TIMEOUT_S)
        target = "/" + "/".join(map(_quote_text, path)) + query
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, target, payload, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise dramatiq.ConnectionFailed(
                f"no answer from the admin port {self._address}: {error}"
            ) from error
        finally:
            connection.close()


def _read_answer(status: int, answer: Any) -> Any:
    if status != http.client.OK:
        raise dramatiq.ConnectionFailed(f"the admin port answered {status}: {_get_error(answer)}")
    return answer


def _get_error(answer: Any) -> str:
    return printable(str(answer.get("error") if isinstance(answer, dict) else answer))


def _quote_text(text: str) -> str:
    return quote(text, safe="")
