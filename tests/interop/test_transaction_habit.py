"""DDMQ's way of sending in a transaction, with what old clients have: a monitor, the message, a cancel.

The application adds a delayed *monitor*, does its own work, sends the business message and cancels the
monitor. If it dies in between, the monitor comes: its consumer looks whether the work was done, sends the
business message if so, and cancels the monitor, which for a loop ends all later ones. Java's example uses a
monitor of type 2, Go's one of type 3 (every 10 s; here as often as is allowed).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.apache_client import Client, done
from tests.interop.conftest import make_group
from tests.scenarios.real_server import RealServer
from tests.support.waits import until

KINDS = (2, 3)


class Application:
    """One transaction with a monitor of this type. `worked`: what its own database says."""

    def __init__(self, server: RealServer, name: str, kind: int) -> None:
        self.business, self.monitor = f"{name}-business", f"{name}-monitor"
        self._server = server
        self._kind = kind
        self._producer = Client(server.ports["producer"])
        self._consumer = Client(server.ports["consumer"])
        self.worked = False
        self.monitors: list[str] = []
        for topic in (self.business, self.monitor):
            make_group(server, f"g-{topic}", topic)

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()

    def begin(self) -> str:
        """Add the monitor; the id that the answer brings."""
        first = int(time.time()) + 2
        loop = {"interval": 3, "times": 100, "expire": first + 86_400} if self._kind == 3 else {}
        zeros = {"interval": 0, "times": 0, "expire": 0}
        answer = self._producer.delay(
            self.monitor, body=b"look after me", tags="*", action=1, dmsgtype=self._kind, timestamp=first,
            **{**zeros, **loop},
        )  # fmt: skip
        assert answer.set_fields().keys() == {"code", "msg", "uniqDelayMsgId"}
        assert answer.code == 0, answer
        return str(answer.uniqDelayMsgId)

    def send(self) -> None:
        assert self._producer.send(self.business, b"goods").code == 0

    def cancel(self, ident: str) -> None:
        answer = self._producer.delay(
            self.monitor, uniqDelayMsgId=ident, body=b"c", tags="jSZ9LbbRa74AtoqR", action=2
        )
        assert answer.set_fields() == {"code": 0, "msg": "OK", "uniqDelayMsgId": ident}

    def watch(self) -> None:
        """The monitor's consumer: take one monitor and bring its transaction to an end."""
        answer = until(self._monitor_there, "the monitor")
        for message in answer.messages:
            assert message.value == b"look after me"
            assert message.properties["from_chronos"] == "from_chronos"
            self.monitors.append(message.key)
            if self.worked:
                self.send()
            self.cancel(message.key)
        self._consumer.submit(done(answer))

    def _monitor_there(self) -> Any:
        answer = self._consumer.pull(f"g-{self.monitor}", maxBatchSize=8, maxLingerTime=1_000)
        return answer if answer.messages else None

    def state(self, ident: str) -> str:
        """What the delay service knows of the monitor."""
        return str(self._server.admin("GET", "delay", "messages", ident)["state"])

    def sent(self) -> int:
        """Business messages in their topic."""
        return len(self._server.messages(self.business))

    def came(self) -> int:
        """Monitors that were delivered."""
        return len(self._server.messages(self.monitor))

    def over(self, ident: str) -> bool:
        """Nothing of the monitor is to come."""
        return self.state(ident) in ("cancelled", "fired")


@pytest.fixture(params=KINDS, ids=["once", "loop"])
def application(request: pytest.FixtureRequest, server: RealServer) -> Iterator[Application]:
    name = request.node.name.replace("[", "-").replace("]", "").replace("_", "-")
    application = Application(server, name, request.param)
    yield application
    application.close()


def test_commit(application: Application) -> None:
    ident = application.begin()
    application.worked = True
    application.send()
    application.cancel(ident)
    until(lambda: application.state(ident) == "cancelled", "the cancel")
    assert (application.sent(), application.came()) == (1, 0)


def test_rollback(application: Application) -> None:
    ident = application.begin()
    application.cancel(ident)
    until(lambda: application.state(ident) == "cancelled", "the cancel")
    assert (application.sent(), application.came()) == (0, 0)


def test_crash_before_commit(application: Application) -> None:
    """The work was not done: the monitor comes, nothing is sent, and it comes no more."""
    ident = application.begin()
    application.watch()
    until(lambda: application.over(ident), "the end of the monitor")
    assert application.monitors == [ident], "occurrence 0 carries the id that the add was answered with"
    assert (application.sent(), application.came()) == (0, 1)


def test_crash_after_commit(application: Application) -> None:
    """The work was done and its message never sent: the monitor's consumer sends it, once."""
    ident = application.begin()
    application.worked = True
    application.watch()
    until(lambda: application.over(ident), "the end of the monitor")
    assert application.monitors == [ident]
    assert (application.sent(), application.came()) == (1, 1)


def test_a_loop_repeats_until_a_consumer_ends_it(server: RealServer, topic: str) -> None:
    """The second occurrence has its own timestamp and timed = 1; a cancel by its id ends the loop."""
    application = Application(server, topic, 3)
    try:
        ident = application.begin()
        first = until(application._monitor_there, "the first")
        application._consumer.submit(done(first))
        application.watch()
        until(lambda: application.state(ident) == "cancelled", "the end of the loop")
        (second,) = application.monitors
        due, kind, expire, times, timed, *rest = ident.split("-", 6)
        assert second == "-".join((str(int(due) + 3), kind, expire, times, "1", *rest))
        assert timed == "0"
    finally:
        application.close()
