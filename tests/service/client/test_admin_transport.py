"""How the admin clients talk HTTP: connections, timeouts, what is sent again, and which error says what."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from admin_standin import CLOSE, HANG, TRUNCATE, AdminStandin, admin_standing_in
from click import ClickException
from either import Going

from ddmq.address import HostPort
from ddmq.cli.admin_client import AdminClient
from ddmq_client import (
    AccessError,
    Admin,
    AdminError,
    ClosedError,
    NotFoundError,
    OptionError,
    RejectedError,
    UnavailableError,
    UnknownChangeError,
)
from ddmq_client.aio import AsyncAdmin
from tests.support.ports import port_of, reserved


@pytest.fixture
def server() -> Iterator[AdminStandin]:
    with admin_standing_in() as standin:
        yield standin


class EitherAdmin(Going):
    """An admin client of either kind."""

    def end(self) -> None:
        (self.close if self._loop is None else self.aclose)()


@pytest.fixture(params=["blocking", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Makes admin clients of either kind, called alike."""
    loop = asyncio.new_event_loop() if request.param == "asyncio" else None
    thread = threading.Thread(target=loop.run_forever) if loop else None
    if thread is not None:
        thread.start()
    clients = []

    def make(servers: str, **settings: Any) -> Any:
        kind = AsyncAdmin if loop else Admin
        clients.append(EitherAdmin(kind(servers, **settings), loop))
        return clients[-1]

    yield make
    for client in clients:
        client.end()
    if loop is not None and thread is not None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def test_one_connection_carries_all_requests(server: AdminStandin, connect: Any) -> None:
    admin = connect(server.address)
    server.answers = [[], (404, {"error": "no such group"}), []]
    assert admin.list_topics() == []
    with pytest.raises(NotFoundError, match="no such group"):
        admin.get_group("g")
    assert admin.list_groups() == []
    assert [each.line for each in server.calls] == [
        "GET /topics?internal=0&form=2 HTTP/1.1",
        "GET /groups/g HTTP/1.1",
        "GET /groups?form=2 HTTP/1.1",
    ]
    assert {each.connection for each in server.calls} == {0}
    assert {each.headers["Host"] for each in server.calls} == {server.address}


def test_there_are_no_more_connections_than_allowed(server: AdminStandin, connect: Any) -> None:
    admin = connect(server.address, connections_max=2)
    server.answers = [[]] * 20
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda _: admin.list_topics(), range(20))) == [[]] * 20
    assert server.open_max <= 2


def test_a_call_that_waits_for_a_connection_ends_in_time(server: AdminStandin, connect: Any) -> None:
    admin = connect(server.address, connections_max=1, timeout_ms=300)
    server.answers = [HANG, HANG]
    with ThreadPoolExecutor(2) as threads:
        errors = [each.exception(60) for each in [threads.submit(admin.list_topics) for _ in range(2)]]
    assert [type(error) for error in errors] == [UnavailableError] * 2


def test_a_read_is_repeated_when_the_server_has_closed(server: AdminStandin, connect: Any) -> None:
    admin = connect(server.address)
    server.answers = [[], CLOSE, []]
    assert admin.list_topics() == []
    assert admin.list_topics() == []
    assert [each.connection for each in server.calls] == [0, 0, 1]


def test_a_connection_that_was_closed_meanwhile_is_not_used(server: AdminStandin, connect: Any) -> None:
    admin = connect(server.address)
    topic = {
        "topic": "t", "queues": 1, "durability": "sync", "readable": True, "writable": True, "delay": "both",
        "delay_dialects": [], "source": "log", "internal": False,
    }  # fmt: skip
    server.answers = [topic, topic]
    admin.create_topic("t")
    server.close_connections()
    assert admin.create_topic("t").name == "t"
    assert [each.connection for each in server.calls] == [0, 1]


@pytest.mark.parametrize("answer", [CLOSE, TRUNCATE, HANG])
def test_a_change_is_sent_once_and_its_outcome_may_be_unknown(
    server: AdminStandin, connect: Any, answer: str
) -> None:
    admin = connect(server.address, timeout_ms=300 if answer == HANG else 15_000)
    server.answers = [[], answer]
    admin.list_topics()
    with pytest.raises(UnknownChangeError, match="the change may or may not have been made") as raised:
        admin.park_key("g", "k")
    assert (raised.value.status, raised.value.server) == (None, server.address)
    assert [each.line.split()[0] for each in server.calls] == ["GET", "POST"]
    assert server.calls[1].body == {"action": "park", "key": "k"}


@pytest.mark.parametrize("answer", [CLOSE, TRUNCATE, HANG])
def test_the_traceback_of_a_lost_answer_has_one_error_which_says_the_reason(
    server: AdminStandin, connect: Any, answer: str
) -> None:
    """Over a new connection and over a reused one."""
    admin = connect(server.address, timeout_ms=300 if answer == HANG else 15_000)
    server.answers = [answer, [], answer]
    for _ in range(2):
        with pytest.raises(UnknownChangeError, match=f"no answer from {server.address}") as raised:
            admin.create_group("g", ["t"])
        assert (
            "".join(traceback.format_exception(raised.value)).count("Traceback (most recent call last)") == 1
        )
        if server.answers:
            admin.list_topics()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RejectedError),
        (403, AccessError),
        (404, NotFoundError),
        (413, RejectedError),
        (500, AdminError),
        (503, UnavailableError),
        (504, UnavailableError),
    ],
)
def test_each_status_is_an_error_with_the_servers_sentence(
    server: AdminStandin, connect: Any, status: int, kind: type[AdminError]
) -> None:
    server.answers = [(status, {"error": "the reason,\nfor people"})]
    with pytest.raises(AdminError) as raised:
        connect(server.address).list_groups()
    assert type(raised.value) is kind
    assert "the reason," in str(raised.value)
    assert (raised.value.status, raised.value.server) == (status, server.address)


@pytest.mark.parametrize("status", [500, 504])
def test_a_change_that_failed_inside_the_server_has_an_unknown_outcome(
    server: AdminStandin, connect: Any, status: int
) -> None:
    server.answers = [(status, {"error": "no answer in time"})]
    with pytest.raises(UnknownChangeError, match="no answer in time"):
        connect(server.address).delete_topic("t")


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<html", (404, {"detail": "nginx"}), (200, None)]
)
def test_another_servers_port_is_named_as_such(server: AdminStandin, connect: Any, answer: Any) -> None:
    server.answers = [answer]
    with pytest.raises(AdminError, match=f"{server.address} is not a ddmq admin port"):
        connect(server.address).list_groups()


NESTED = b"[" * 100_000 + b"]" * 100_000
NESTED_ANSWERS = [
    b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)
    for status in (b"200 OK", b"400 Bad Request")
    for body in (NESTED, b'{"error": %b}' % NESTED)
]


@pytest.mark.parametrize("answer", NESTED_ANSWERS, ids=range(len(NESTED_ANSWERS)))
def test_an_answer_that_is_nested_too_deeply_is_no_ddmq_servers(
    server: AdminStandin, connect: Any, answer: bytes
) -> None:
    server.answers = [answer] * 3
    client = connect(server.address)
    for call in (client.list_groups, lambda: client.get_topic("t"), lambda: client.delete_topic("t")):
        with pytest.raises(AdminError, match=f"{server.address} is not a ddmq admin port"):
            call()


def test_the_commands_take_no_nested_answer_either(server: AdminStandin) -> None:
    server.answers = [NESTED_ANSWERS[0]]
    client = AdminClient(HostPort("127.0.0.1", int(server.address.rpartition(":")[2])))
    with pytest.raises(ClickException, match=f"{server.address} is not a ddmq admin port"):
        client.get("topics")


def test_what_is_no_http_is_no_answer(server: AdminStandin, connect: Any) -> None:
    server.answers = [b"\x80\x01\x00\x03\r\n\r\n"]
    with pytest.raises(UnavailableError, match=f"no answer from {server.address}"):
        connect(server.address).list_groups()


def test_without_a_server_nothing_was_changed(connect: Any) -> None:
    with reserved() as socket:
        address = f"127.0.0.1:{port_of(socket)}"
        with pytest.raises(UnavailableError, match=f"no admin server answers at {address}"):
            connect(address).delete_topic("t")


def test_the_next_server_is_used_when_one_is_away(server: AdminStandin, connect: Any) -> None:
    with reserved() as socket:
        admin = connect(f"127.0.0.1:{port_of(socket)},{server.address}")
        server.answers = [[], []]
        assert admin.list_topics() == admin.list_topics() == []


def test_a_closed_client_is_an_error(server: AdminStandin, connect: Any) -> None:
    admin = connect(server.address)
    admin.end()
    admin.end()
    with pytest.raises(ClosedError):
        admin.list_topics()


@pytest.mark.parametrize(
    "settings",
    [{"servers": ""}, {"servers": 7}, {"timeout_ms": 0}, {"connections_max": 0}, {"producers": "a:b"}],
)
@pytest.mark.parametrize("kind", [Admin, AsyncAdmin])
def test_invalid_settings_are_rejected(kind: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="|".join(settings)):
        kind(**({"servers": "127.0.0.1"} | settings))


def test_names_that_are_none_are_rejected_before_anything_is_sent(server: AdminStandin, connect: Any) -> None:
    admin = connect(server.address)
    for name in ("", 7, None):
        with pytest.raises(OptionError, match="a name is empty or no text"):
            admin.delete_group(name)
    with pytest.raises(OptionError, match="no time zone"):
        admin.purge_dead_letters("g", before=datetime(2026, 1, 1))
    with pytest.raises(OptionError, match="limit=0"):
        admin.list_delays(limit=0)
    assert server.calls == []


def test_long_lists_come_page_by_page(server: AdminStandin, connect: Any) -> None:
    server.answers = [
        {"items": [letter_row(0), letter_row(1)], "next": "x", "exact": True, "missing": {}},
        {"items": [], "next": "y", "exact": True, "missing": {}},
        {"items": [letter_row(2)], "exact": True, "missing": {}},
    ]
    since = datetime(2026, 11, 22, 12, tzinfo=UTC)
    letters = connect(server.address).list_dead_letters("g", limit=9, reason="failed", since=since)
    assert [(letter.offset, letter.key, letter.topic_offset) for letter in letters] == [
        (0, "", None), (1, "", None), (2, "", None),
    ]  # fmt: skip
    query = "reason=failed&since_ms=1795348800000&count=9"
    assert [each.line.split()[1] for each in server.calls] == [
        f"/dlq/g?{query}&form=2",
        f"/dlq/g?{query}&after=x&form=2",
        f"/dlq/g?{query}&after=y&form=2",
    ]


def test_lists_of_a_server_of_the_release_before_are_understood(server: AdminStandin, connect: Any) -> None:
    absent = {"key": "", "tags": "", "error": "", "topic_queue": None, "topic_offset": None}
    delayed = {"id": "d", "due_ms": 1, "topic": "t"}
    server.answers = [
        [],
        {"shown": [letter_row(0) | absent], "next": 3},
        {"shown": [letter_row(3) | absent], "next": None},
        {"messages": [delayed], "next": "7.0.1", "orders_waiting": 0},
        {"messages": [delayed], "next": None, "orders_waiting": 0},
        {"rows": []},
    ]
    admin = connect(server.address)
    assert admin.count_dead_letters() == []
    assert [letter.offset for letter in admin.list_dead_letters("g")] == [0, 3]
    assert len(admin.list_delays(topic="t")) == 2
    with pytest.raises(AdminError, match="no list; is the server of another release"):
        admin.list_topics()
    assert [each.line.split()[1] for each in server.calls][1:5] == [
        "/dlq/g?count=100&form=2",
        "/dlq/g?count=100&from=3&form=2",
        "/delay/messages?topic=t&count=100&form=2",
        "/delay/messages?topic=t&count=100&after=7.0.1&form=2",
    ]


def letter_row(offset: int) -> dict[str, Any]:
    """A dead letter as a server states it, without absent values."""
    return {
        "queue": 0, "offset": offset, "id": "", "reason": "failed", "topic": "t", "attempts": 1, "resent": 0,
        "body_bytes": 1, "preview": "",
    }  # fmt: skip


def test_a_resend_is_repeated_until_nothing_is_left(server: AdminStandin, connect: Any) -> None:
    page = {"group": "g", "dry_run": False, "to_topic": False, "kept": {}}
    server.answers = [
        page | {"resent": {"t": 2}, "cursor": [[0, 2, 9]]},
        page | {"resent": {"t": 1, "u": 1}, "kept": {"topic x does not exist any more": 1}, "cursor": None},
    ]
    done = connect(server.address).resend_dead_letters("g")
    assert (done.resent, done.not_sent, done.resent_total) == (
        {"t": 3, "u": 1},
        {"topic x does not exist any more": 1},
        4,
    )
    assert [each.body.get("cursor") for each in server.calls] == [None, [[0, 2, 9]]]
    assert all(each.body["all"] for each in server.calls)


def test_a_cancelled_call_closes_its_connection(server: AdminStandin) -> None:
    async def cancel() -> None:
        server.answers = [HANG, []]
        async with AsyncAdmin(server.address, connections_max=1) as admin:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(admin.list_topics(), 0.2)
            assert await admin.list_topics() == []
        assert [each.connection for each in server.calls] == [0, 1]

    asyncio.run(cancel())
