"""`POST /messages` and `POST /delay/messages/ID` on a real server: sends and changes over the admin port."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ddmq_client import Producer
from tests.scenarios.real_server import RealServer, running, write_config
from tests.service.cli.conftest import Shell
from tests.support.waits import until

HOUR_MS = 3_600_000


def send(server: RealServer, topic: str, **body: Any) -> dict[str, Any]:
    row: dict[str, Any] = server.admin("POST", "messages", body={"topic": topic, **body})
    return row


def change(server: RealServer, delay_id: str, action: str, **body: Any) -> dict[str, Any]:
    row: dict[str, Any] = server.admin("POST", "delay", "messages", delay_id, body={"action": action, **body})
    return row


def state_of(server: RealServer, delay_id: str) -> str:
    return str(server.admin("GET", "delay", "messages", delay_id)["state"])


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- sends


def test_a_message_is_sent_with_all_that_a_client_can_state(server: RealServer, topic: str) -> None:
    server.admin("POST", "topics", topic, body={"queues": 3})
    properties = {"a": "1", "ü": "§"}
    row = send(server, topic, body="tea é", key="k", tags="t", properties=properties, queue=2)
    assert (row["topic"], row["queue"], row["offset"]) == (topic, 2, 0)
    assert (row["delay_id"], row["due_ms"]) == (None, None)
    (stored,) = server.messages(topic)
    assert (stored["id"], stored["queue"], stored["offset"]) == (row["id"], 2, 0)
    assert (stored["body"], stored["key"], stored["tags"]) == ("tea é", "k", "t")
    assert stored["properties"] == properties


def test_any_bytes_are_sent_in_base64(server: RealServer, topic: str) -> None:
    content = bytes(range(256))
    row = send(server, topic, body_base64=base64.b64encode(content).decode())
    (stored,) = server.messages(topic)
    assert (stored["id"], base64.b64decode(stored["body_base64"])) == (row["id"], content)


def test_a_shard_key_chooses_the_queue_of_the_client_library(server: RealServer, topic: str) -> None:
    server.admin("POST", "topics", topic, body={"queues": 8})
    with Producer(server.address("producer"), timeout_ms=60_000) as producer:
        for shard_key in ("customer-17", 12, -1):
            queue_id = producer.send(topic, b"x", shard_key=shard_key).queue_id
            assert send(server, topic, body="x", shard_key=shard_key)["queue"] == queue_id


def test_a_second_send_with_the_same_idempotency_key_is_recognised(server: RealServer, topic: str) -> None:
    first = send(server, topic, body="one", idempotency_key="order-1")
    again = send(server, topic, body="one", idempotency_key="order-1")
    other = send(server, topic, body="two", idempotency_key="order-1")
    assert [row["duplicate"] for row in (first, again, other)] == [False, True, True]
    assert [row["body_differs"] for row in (first, again, other)] == [False, False, True]
    assert {row["id"] for row in (first, again, other)} == {first["id"]}
    assert server.bodies(topic) == ["one"]


def test_sends_count_in_the_metrics_of_the_topic(server: RealServer, topic: str) -> None:
    send(server, topic, body="one")
    server.request("POST", "/messages", {"topic": topic, "body": "x", "key": "k" * 300})
    assert server.metric("ddmq_sends_total", topic=topic, code="0") == 1
    assert server.metric("ddmq_sends_total", topic=topic, code="11") == 1


def test_a_delayed_message_waits_with_an_id_and_a_due_time(server: RealServer, topic: str) -> None:
    due_ms = now_ms() + 2 * HOUR_MS
    at = send(server, topic, body="at", due_ms=due_ms, key="k")
    assert (at["due_ms"], at["queue"], at["offset"], at["id"]) == (due_ms, None, None, None)
    after = send(server, topic, body="after", delay_ms=HOUR_MS)
    assert due_ms - HOUR_MS <= after["due_ms"] <= now_ms() + HOUR_MS + 1
    rows = server.admin("GET", "delay", "messages", at["delay_id"])
    assert (rows["state"], rows["body"], rows["key"]) == ("pending", "at", "k")
    past = send(server, topic, body="past", due_ms=1_700_000_000_000)
    assert past["due_ms"] == 1_700_000_000_000
    until(lambda: server.bodies(topic) == ["past"], "what was due in the past is due at once")


def test_a_schedule_repeats_as_one_of_the_client_library(server: RealServer, topic: str) -> None:
    cron = send(server, topic, body="c", cron="0 9 * * 1-5", zone="Asia/Shanghai", catch_up="skip")
    loop = send(server, topic, body="l", every_ms=HOUR_MS, times=3)
    shown = [server.admin("GET", "delay", "messages", row["delay_id"]) for row in (cron, loop)]
    assert [row["repeats"] for row in shown] == [
        "cron 0 9 * * 1-5 in Asia/Shanghai",
        "every 3600 s 3 times",
    ]


def test_a_message_at_a_delay_level_has_no_delay_id(server: RealServer, topic: str) -> None:
    row = send(server, topic, body="soon", level=1)
    assert row["id"]
    assert (row["delay_id"], row["queue"], row["offset"]) == (None, None, None)
    until(lambda: server.bodies(topic) == ["soon"], "it is delivered after a second")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "topic is missing"),
        ({"topic": "t"}, "neither body nor body_base64 is set; allowed: exactly one of them"),
        ({"topic": "t", "body": "a", "body_base64": "YQ=="}, "body and body_base64 are both set"),
        ({"topic": "t", "body": ""}, "body"),
        ({"topic": "t", "body": 7}, "body is 7; allowed: a text"),
        ({"topic": "t", "body_base64": "é"}, "body_base64 is 'é'; allowed: bytes in base64"),
        ({"topic": 7, "body": "a"}, "topic is 7; allowed: the name of a topic"),
        ({"topic": "", "body": "a"}, "the topic is empty"),
        ({"topic": "a\0b", "body": "a"}, "a character that is not a letter"),
        ({"topic": "%DELAY", "body": "a"}, "topic '%DELAY' is reserved"),
        ({"topic": "carrera_heartbeat", "body": "a"}, "carrera_heartbeat"),
        ({"topic": "t", "body": "a", "key": "k" * 256}, "at most 255 characters"),
        ({"topic": "t", "body": "a", "properties": ["a"]}, "allowed: a map of text to text"),
        ({"topic": "t", "body": "a", "properties": {"a": 1}}, "allowed: a map of text to text"),
        ({"topic": "t", "body": "a", "properties": {" ": "b"}}, "blank"),
        ({"topic": "t", "body": "a", "properties": {"KEYS": "b"}}, "reserved"),
        ({"topic": "t", "body": "a", "queue": -1}, "queue is -1; allowed: a queue number"),
        ({"topic": "t", "body": "a", "queue": 1 << 31}, "allowed: a queue number"),
        ({"topic": "t", "body": "a", "queue": True}, "allowed: a queue number"),
        ({"topic": "t", "body": "a", "shard_key": 1 << 63}, "a whole number of 64 bits"),
        ({"topic": "t", "body": "a", "level": 19}, "level is 19; allowed: 1 to 18"),
        ({"topic": "t", "body": "a", "level": 0}, "level is 0; allowed: 1 to 18"),
        ({"topic": "t", "body": "a", "level": 3, "delay_ms": 5}, "delay_ms and level are both set"),
        ({"topic": "t", "body": "a", "due_ms": 5, "delay_ms": 5}, "delay_ms and due_ms are both set"),
        ({"topic": "t", "body": "a", "delay_ms": -5}, "delay_ms is -5; allowed: milliseconds, 0 or more"),
        ({"topic": "t", "body": "a", "delay_ms": 5.5}, "delay_ms is 5.5"),
        ({"topic": "t", "body": "a", "delay_ms": 10**16}, "delay_ms is 10000000000000000"),
        ({"topic": "t", "body": "a", "delay_ms": 10**15}, "allowed: 0 to 62d (code 11)"),
        ({"topic": "t", "body": "a", "due_ms": 10**17}, "at most the end of the year 9999"),
        ({"topic": "t", "body": "a", "due_ms": 253_402_300_799_999}, "62d from now (code 33)"),
        ({"topic": "t", "body": "a", "due_ms": 0}, "1970-01-01T00:00:00Z; allowed: 2001-09-09"),
        ({"topic": "t", "body": "a", "zone": "UTC"}, "zone='UTC' without a cron"),
        ({"topic": "t", "body": "a", "times": 2}, "times is set without a first delivery"),
        ({"topic": "t", "body": "a", "cron": "x"}, "(code 11)"),
        ({"topic": "t", "body": "a", "cron": "0 9 * * *", "zone": "Nowhere/Town"}, "Nowhere/Town"),
        ({"topic": "t", "body": "a", "every_ms": 10}, "every is 10ms"),
        ({"topic": "t", "body": "a", "catch_up": "some", "every_ms": 5000}, "fire_once, all, skip"),
        ({"topic": "t", "body": "a", "delay_ms": 5, "idempotency_key": "i"}, "idempotency_key of a delayed"),
        ({"topic": "t", "body": "a", "idempotency_key": "i" * 300}, "(code 11)"),
        ({"topic": "t", "body": "a", "timeout_ms": 0}, "timeout_ms is 0"),
        ({"topic": "t", "body": "a", "tag": "b"}, "did you mean 'tags'?"),
    ],
)
def test_a_message_that_is_wrong_is_rejected_in_words(
    server: RealServer, body: dict[str, Any], words: str
) -> None:
    status, answer = server.request("POST", "/messages", body)
    assert (status, set(answer)) == (400, {"error"}), answer
    assert words in answer["error"]


def test_a_body_over_the_bound_of_the_admin_port_is_rejected_unread(server: RealServer, topic: str) -> None:
    status, answer = server.request("POST", "/messages", {"topic": topic, "body": "x" * (2 << 20)})
    assert (status, "allowed: 1048576" in answer["error"]) == (413, True)
    assert server.request("GET", f"/topics/{topic}")[0] == 404


def test_a_topic_that_is_closed_rejects_the_message(server: RealServer, topic: str) -> None:
    server.admin("POST", "topics", topic, body={"writable": False})
    status, answer = server.request("POST", "/messages", {"topic": topic, "body": "x"})
    assert (status, "code 13" in answer["error"]) == (400, True), answer
    server.admin("POST", "topics", topic, body={"create": False, "writable": True, "delay": "only"})
    status, answer = server.request("POST", "/messages", {"topic": topic, "body": "x"})
    assert (status, "code 19" in answer["error"]) == (400, True), answer


# --- changes of delayed messages


def test_a_cancelled_message_is_never_delivered(server: RealServer, topic: str) -> None:
    delay_id = send(server, topic, body="x", delay_ms=HOUR_MS)["delay_id"]
    nothing_fired = {"id": delay_id, "outcome": "cancelled", "fired_ms": None, "due_ms": None}
    assert change(server, delay_id, "cancel") == nothing_fired
    assert state_of(server, delay_id) == "cancelled"
    assert change(server, delay_id, "cancel") == nothing_fired
    assert change(server, delay_id, "fire")["outcome"] == "cancelled"
    assert server.bodies(topic) == []


def test_a_fired_message_is_delivered_now_and_says_when(server: RealServer, topic: str) -> None:
    before = now_ms()
    delay_id = send(server, topic, body="x", delay_ms=HOUR_MS)["delay_id"]
    outcome = change(server, delay_id, "fire")
    assert outcome["outcome"] == "fired"
    assert before <= outcome["fired_ms"] <= now_ms() + 1
    assert server.bodies(topic) == ["x"]
    again = change(server, delay_id, "cancel")
    assert again["outcome"] == "fired"
    assert outcome["fired_ms"] <= again["fired_ms"] <= now_ms() + 1


def test_a_rescheduled_message_is_due_at_the_new_time(server: RealServer, topic: str) -> None:
    delay_id = send(server, topic, body="x", delay_ms=HOUR_MS)["delay_id"]
    due_ms = now_ms() + 5 * HOUR_MS
    outcome = change(server, delay_id, "reschedule", due_ms=due_ms)
    assert (outcome["outcome"], outcome["due_ms"]) == ("rescheduled", due_ms)
    uuid = delay_id[-36:]
    assert server.admin("GET", "delay", "messages", uuid)["due_ms"] == due_ms
    assert change(server, uuid, "reschedule", delay_ms=HOUR_MS)["due_ms"] < due_ms
    change(server, uuid, "reschedule", due_ms=now_ms() - HOUR_MS)
    until(lambda: server.bodies(topic) == ["x"], "a due time in the past is now")


def test_an_unknown_id_is_not_found_and_stays_cancelled(server: RealServer) -> None:
    due = int(time.time()) + 3_600
    delay_id = f"{due}-2-{due + 172_800}-0-0-0-1-{uuid4()}"
    for action, outcome in (("fire", "unknown"), ("cancel", "unknown"), ("cancel", "unknown")):
        status, answer = server.request("POST", f"/delay/messages/{delay_id}", {"action": action})
        assert (status, answer["outcome"]) == (404, outcome)
        assert answer["error"] == f"there is no delayed message with this id: {delay_id}"
    assert state_of(server, delay_id) == "cancelled before it was known"
    long_ago = f"1500000000-2-1500172800-0-0-0-1-{uuid4()}"
    status, answer = server.request("POST", f"/delay/messages/{long_ago}", {"action": "cancel"})
    assert (status, answer["outcome"]) == (404, "too_old")


UNKNOWN_ID = "5f1f7d3c-1c43-4c1e-9d0a-2b9f63a1c7e4"


@pytest.mark.parametrize(
    ("delay_id", "body", "words"),
    [
        (UNKNOWN_ID, {}, "action is missing; allowed: cancel, fire, reschedule"),
        (UNKNOWN_ID, {"action": "keep"}, "action is 'keep'; allowed: cancel, fire, reschedule"),
        (UNKNOWN_ID, {"action": "reschedule"}, "allowed: exactly one of them"),
        (UNKNOWN_ID, {"action": "reschedule", "due_ms": 5, "delay_ms": 5}, "exactly one of them"),
        (UNKNOWN_ID, {"action": "cancel", "due_ms": 5}, "with action 'cancel'; allowed: none"),
        (UNKNOWN_ID, {"action": "reschedule", "due_ms": "5"}, "due_ms is '5'"),
        (UNKNOWN_ID, {"action": "reschedule", "due_ms": 1000}, "code 33"),
        (UNKNOWN_ID, {"action": "reschedule", "delay_ms": 10**15}, "code 33"),
        (UNKNOWN_ID, {"action": "cancel", "dueMs": 5}, "did you mean 'due_ms'?"),
        ("x", {"action": "cancel"}, "the delay id is 'x'"),
        ("%00", {"action": "cancel"}, "code 30"),
        ("9" * 5_000, {"action": "cancel"}, "code 30"),
        (f"1700000000-2-1700172800-0-0-0-99-{UNKNOWN_ID}", {"action": "cancel"}, "code 34"),
    ],
)
def test_a_wrong_change_is_rejected_in_words(
    server: RealServer, delay_id: str, body: dict[str, Any], words: str
) -> None:
    status, answer = server.request("POST", f"/delay/messages/{delay_id}", body)
    assert (status, set(answer)) == (400, {"error"}), answer
    assert words in answer["error"]


# --- which port a change goes to


@pytest.fixture
def admin_alone(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell that knows the admin port alone; at the producer port of its environment nobody answers."""
    monkeypatch.setenv("DDMQ_PRODUCER", "127.0.0.1:1")
    return shell


def test_single_messages_are_changed_over_the_admin_port(
    admin_alone: Shell, server: RealServer, topic: str
) -> None:
    ids = [send(server, topic, body=name, delay_ms=HOUR_MS)["delay_id"] for name in ("a", "b", "c")]
    (outcome,) = admin_alone.json("delay", "reschedule", ids[0], "--delay", "5h")
    assert (outcome["id"], outcome["outcome"], outcome["fired_ms"]) == (ids[0], "rescheduled", None)
    assert outcome["due_ms"] > now_ms() + 4 * HOUR_MS
    assert admin_alone("delay", "reschedule", ids[0], "--at", "+6h").startswith("rescheduled, due ")
    assert admin_alone("delay", "fire", ids[1]).startswith("fired ")
    assert admin_alone("delay", "cancel", ids[0], ids[2]) == f"{ids[0]}: cancelled\n{ids[2]}: cancelled\n"
    assert admin_alone("delay", "cancel", ids[1], code=1).startswith("already fired ")
    assert admin_alone("delay", "fire", ids[0], code=1) == "not done: it was cancelled before\n"
    assert server.bodies(topic) == ["b"]
    never = f"{int(time.time()) + 3_600}-2-1900000000-0-0-0-1-{uuid4()}"
    assert admin_alone("delay", "cancel", never, code=1) == "unknown: there is no such message\n"
    old = f"1500000000-2-1500172800-0-0-0-1-{uuid4()}"
    (outcome,) = admin_alone.json("delay", "cancel", old, code=1)
    assert outcome == {"id": old, "outcome": "too_old", "fired_ms": None, "due_ms": None}
    (outcome,) = admin_alone.json("delay", "reschedule", ids[0], "--at", "2099-01-01T00:00Z", code=1)
    assert (outcome["outcome"], "(code 33)" in outcome["error"]) == (None, True)


def test_many_messages_are_cancelled_over_the_admin_port_that_is_named(
    admin_alone: Shell, server: RealServer, topic: str
) -> None:
    for number in range(40):
        send(server, topic, body=f"{number}", delay_ms=HOUR_MS)
    admin = ("--admin", server.address("admin"))
    until(lambda: admin_alone.json("delay", "count", topic)["count"] == 40)
    assert admin_alone("delay", "cancel", "--topic", topic, "--yes", *admin) == "40 cancelled\n"
    assert admin_alone("delay", "count", topic).strip() == "0"


def test_a_producer_port_that_is_named_gets_the_change(
    shell: Shell, server: RealServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    delay_id = send(server, topic, body="x", delay_ms=HOUR_MS)["delay_id"]
    monkeypatch.setenv("DDMQ_ADMIN", "127.0.0.1:1")
    assert "no server answers at 127.0.0.1:1" in shell.error_of("delay", "cancel", delay_id, code=1)
    producer = ("--producer", server.address("producer"))
    assert shell("delay", "reschedule", delay_id, "--delay", "2h", *producer).startswith("rescheduled")
    monkeypatch.delenv("DDMQ_ADMIN")  # the variable of the producer port is named, that of the admin port not
    assert shell("delay", "cancel", delay_id) == "cancelled\n"


# --- other servers


def test_an_unknown_topic_is_not_found_where_sends_create_none(tmp_path: Path) -> None:
    config = write_config(tmp_path / "conf", proxy_producer={"auto_create_topics": False})
    with running(tmp_path, config) as server:
        for delay in ({}, {"delay_ms": 5}):
            status, answer = server.request("POST", "/messages", {"topic": "none", "body": "x", **delay})
            assert (status, "'none' does not exist" in answer["error"]) == (404, True), answer


def test_a_rate_limit_holds_for_sends_of_operators(tmp_path: Path) -> None:
    config = write_config(tmp_path / "conf", proxy_producer={"rate": {"messages_per_s": 1}})
    with running(tmp_path, config) as server:
        statuses = [server.request("POST", "/messages", {"topic": "t", "body": "x"})[0] for _ in range(5)]
    assert set(statuses) == {200, 503}


@pytest.mark.slow
def test_changes_survive_a_kill_at_once_after_the_answer(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        kept, cancelled, moved = (
            send(server, "t", body=name, delay_ms=HOUR_MS)["delay_id"] for name in ("kept", "gone", "moved")
        )
        due_ms = now_ms() + 5 * HOUR_MS
        change(server, moved, "reschedule", due_ms=due_ms)
        change(server, cancelled, "cancel")
        server.kill()
        server.start()
        rows = until(
            lambda: rows if not (rows := server.admin("GET", "delay", "messages"))["not_open"] else None
        )["messages"]
        assert [(row["id"], row["preview"]) for row in rows] == [(kept, "kept"), (moved, "moved")]
        assert rows[1]["due_ms"] == due_ms
        assert state_of(server, cancelled) == "cancelled"


@pytest.mark.slow
def test_every_process_of_a_server_sends_and_changes(tmp_path: Path) -> None:
    server = RealServer(tmp_path, processes=True)
    try:
        server.start()
        public, ports = server.ports["admin"], until(lambda: admin_ports(server), "all are ready")
        assert len(ports) == 3
        ids = []
        for port in ports:
            server.ports["admin"] = port
            assert send(server, "t", body=f"now {port}")["offset"] >= 0
            ids.append(send(server, "t", body=f"later {port}", delay_ms=HOUR_MS)["delay_id"])
        for port, delay_id in zip(ports, reversed(ids), strict=True):
            server.ports["admin"] = port
            assert change(server, delay_id, "cancel")["outcome"] == "cancelled"
            status, answer = server.request("POST", "/messages", {"topic": "a b", "body": "x"})
            assert (status, "code 11" in answer["error"]) == (400, True)
        server.ports["admin"] = public
        assert server.bodies("t") == sorted(f"now {port}" for port in ports)
        assert server.admin("GET", "delay")["pending"] == 0
    finally:
        server.end()


def admin_ports(server: RealServer) -> list[int] | None:
    """The admin ports of the three components, as the log names them; None until all are there."""
    lines = [line for line in server.log.splitlines() if "part ready" in line]
    ports = [int(line.rpartition("admin=127.0.0.1:")[2].split()[0]) for line in lines]
    return ports if len(ports) == 3 else None


@pytest.mark.slow
def test_a_delay_service_alone_forwards_to_a_server_that_it_knows_or_says_where_to_send(
    tmp_path: Path,
) -> None:
    alone = RealServer(tmp_path, command="delay-service")
    try:
        alone.start()
        status, answer = alone.request("POST", "/messages", {"topic": "t", "body": "x"})
        assert (status, "admin port of `ddmq serve`" in answer["error"]) == (503, True), answer
        with running(tmp_path) as server:
            delay_id = send(server, "t", body="x", delay_ms=HOUR_MS)["delay_id"]
            until(lambda: alone.describe_own_shards()["elsewhere"], "the server has shards, too")
            until(lambda: alone.request("POST", "/messages", {"topic": "t", "body": "y"})[0] == 200)
            assert change(alone, delay_id, "cancel")["outcome"] == "cancelled"
            assert server.bodies("t") == ["y"]
    finally:
        alone.end()
