"""A client with a few rights uses the client library and the commands for what its rights allow."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ddmq_client import DelayStatus, NotAllowedError, Producer
from tests.scenarios.real_server import RealServer, ddmq, write_config
from tests.support.rights import Who, write_rights

pytestmark = pytest.mark.slow
DELAY = timedelta(hours=1)
RIGHTS = (("send", "mine"), ("consume", "mine"), ("consume", "crew"), ("create", "crew"), ("manage", "crew"))
NARROW = Who("narrow", frozenset(RIGHTS))
BROAD = Who("broad", frozenset({("send", "*")}))


class Tokens:
    """A server with rights, and the token of each identity."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        conf = write_config(
            folder / "conf", topics={"topics": {"mine": {"queues": 1}, "theirs": {"queues": 1}}}
        )
        self.tokens = write_rights(conf, [NARROW, BROAD])
        self.server = RealServer(folder, conf)
        self.server.start()

    def producer(self, name: str) -> Producer:
        return Producer(f"127.0.0.1:{self.server.ports['producer']}", token=self.tokens[name])


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokens]:
    secured = Tokens(tmp_path_factory.mktemp("rights"))
    yield secured
    secured.server.end()


def test_the_result_of_a_send_is_enough_to_change_it(secured: Tokens) -> None:
    with secured.producer("narrow") as producer:
        sent = producer.send("mine", b"tea", delay=DELAY)
        moved = producer.reschedule(sent, deliver_at=datetime.now(UTC) + 2 * DELAY)
        assert moved.status is DelayStatus.RESCHEDULED
        assert producer.cancel(sent).status is DelayStatus.CANCELLED
        fired = producer.send("mine", b"tea", delay=DELAY)
        assert producer.fire_now(fired).status is DelayStatus.FIRED


def test_a_delay_id_needs_its_topic_beside_it(secured: Tokens) -> None:
    with secured.producer("narrow") as producer, secured.producer("broad") as other:
        delay_id = producer.send("mine", b"tea", delay=DELAY).delay_id
        theirs = other.send("theirs", b"tea", delay=DELAY).delay_id
        assert delay_id is not None
        assert theirs is not None
        with pytest.raises(NotAllowedError, match=r"lacks the right `send`; .*must state its topic"):
            producer.cancel(delay_id)
        with pytest.raises(NotAllowedError, match="lacks the right `send theirs`"):
            producer.cancel(theirs, topic="theirs")
        assert producer.cancel(theirs, topic="mine").status is DelayStatus.UNKNOWN, "it is of another topic"
        assert producer.cancel(delay_id, topic="mine").status is DelayStatus.CANCELLED


@pytest.mark.parametrize("name", ["broad", "root"])
def test_who_may_send_to_every_topic_needs_the_delay_id_alone(secured: Tokens, name: str) -> None:
    with secured.producer("narrow") as producer, secured.producer(name) as other:
        delay_id = producer.send("mine", b"tea", delay=DELAY).delay_id
        assert delay_id is not None
        assert other.cancel(delay_id).status is DelayStatus.CANCELLED


def test_a_group_is_set_with_the_rights_on_it(secured: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    token = secured.folder / "token"
    token.touch(0o600)
    token.write_text(secured.tokens["narrow"])
    monkeypatch.setenv("DDMQ_TOKEN_FILE", str(token))
    admin = ["--admin", f"127.0.0.1:{secured.server.ports['admin']}"]
    for _ in range(2):
        done = ddmq("group", "set", "crew", "--topic", "mine", "--start", "first", *admin)
        assert (done.returncode, "Error" in done.stderr) == (0, False), done.stderr
