"""Every result code that exists so far, as an independent client sees it on the real server.

Codes 10 and 14 need an engine that fails, which a healthy log does not: there a proxy over the memory
engine fails on command. 12 and 20 have servers of their own: one whose writer is stopped, one that drains.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.records import AppendStatus, TopicInfo
from ddmq_common.errors import DdmqError, StorageError, UnknownTopicError
from tests.interop.apache_client import Client, DelayMessage, Message, Result, done
from tests.interop.conftest import make_group
from tests.scenarios.real_server import RealServer, running, write_config
from tests.service.producer.producer_server import ProducerServer
from tests.support.installations import Installation
from tests.support.waits import until

ID = "1795289273-2-1795462073-0-0-0-7-a4207970-e5e1-11f1-a4e0-02fc00000001"
RESERVED = [
    "TRACE_ON", "MSG_REGION", "KEYS", "TAGS", "WAIT", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG",
    "PGROUP", "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG",
    "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME", "UNIQ_KEY", "MAX_RECONSUME_TIMES",
    "CONSUME_START_TIME",
]  # fmt: skip
MIB = 1 << 20


@pytest.fixture
def client(strict: RealServer, protocol: str) -> Iterator[Client]:
    with Client(strict.ports["producer"], protocol) as client:
        yield client


def says(result: Any, code: int, *words: str) -> None:
    """A refusal of that code whose text names what was wrong."""
    assert result.code == code, result
    assert result.msg.startswith("FAILED:")
    for word in words:
        assert word in result.msg


ILLEGAL: dict[str, tuple[dict[str, Any], str]] = {
    "key of 256 characters": ({"key": "k" * 256}, "256"),
    "key of 256 wide characters": ({"key": "é" * 256}, "256"),
    "tags of 256 characters": ({"tags": "t" * 256}, "256"),
    "blank property name": ({"properties": {" ": "v"}}, "blank"),
    "empty property name": ({"properties": {"": "v"}}, "blank"),
    "blank property value": ({"properties": {"p": " \t"}}, "'p'"),
    "empty property value": ({"properties": {"p": ""}}, "'p'"),
    "wide blank property value": ({"properties": {"p": "\u3000"}}, "blank"),
    "DELAY that is no number": ({"properties": {"DELAY": "1h"}}, "'1h'"),
    "DELAY below 0": ({"properties": {"DELAY": "-1"}}, "'-1'"),
    "no body": ({"body": None}, "0 bytes"),
    "empty body": ({"body": b"", "value": ""}, "0 bytes"),
    "body over the limit": ({"body": bytes(2 * MIB + 1)}, "2097153"),
    "body over the topic's limit": ({"topic": "small", "body": bytes(101)}, "101"),
    "no topic": ({"topic": None}, "topic"),
    "empty topic": ({"topic": ""}, "empty"),
    "a path": ({"topic": "../../etc/passwd"}, "../../etc/passwd"),
    "a dot": ({"topic": "a.b"}, "a.b"),
    "a NUL": ({"topic": "a\0b"}, "a\\x00b"),
    "a wide topic": ({"topic": "tópico"}, "tópico"),
    "128 bytes of topic": ({"topic": "t" * 128}, "128"),
    "a retry topic": ({"topic": "%RETRY%g"}, "reserved"),
    "a dead-letter topic": ({"topic": "%DLQ%g"}, "reserved"),
    "the schedule topic": ({"topic": "SCHEDULE_TOPIC_XXXX"}, "reserved"),
    **{
        f"property {name}": ({"properties": {name: "x"}}, name) for name in RESERVED
    },
}  # fmt: skip


NAMES_OF_NOBODY = ("no topic", "empty topic", "the schedule topic")  # no rule can allow them


@pytest.mark.parametrize("case", ILLEGAL)
def test_11_illegal_message(client: Client, case: str, access: str) -> None:
    fields, message = ILLEGAL[case]
    code = 11
    if access == "legacy" and case in NAMES_OF_NOBODY:
        code, message = 13, "lacks the right `send"
    says(client.send(**{"topic": "both", **fields}), code, message)
    assert client.send("both").code == 0, "the connection goes on"


def test_11_is_not_for_values_at_the_limit(client: Client) -> None:
    assert client.send("both", key="é" * 255, tags="t" * 255, body=bytes(2 * MIB)).code == 0
    assert client.send("small", bytes(100)).code == 0
    assert client.send("both", properties={"p" * 1000: "v" * 1000}).code == 0


def test_11_in_batches(client: Client) -> None:
    good = Message(topic="both", body=b"b")
    for bad, message in (
        (Message(topic="both", body=b""), "0 bytes"),
        (Message(topic="both", body=b"b", properties={"DELAY": "3"}), "DELAY"),
        (Message(topic="carrera_heartbeat", body=b"b"), "carrera_heartbeat"),
    ):
        says(client.call("sendBatchSync", messages=[good, bad, good]), 11, message)
    big = Message(topic="both", body=bytes(MIB + 1))
    says(client.call("sendBatchSync", messages=[big] * 4), 11, "4194308")
    many = [Message(topic="both", body=b"b")] * 4097
    says(client.call("sendBatchSync", messages=many), 11, "4097")


def test_0_also_for_an_empty_batch_and_the_heartbeat(client: Client) -> None:
    ok = {"code": 0, "msg": "OK"}
    assert client.call("sendBatchSync", messages=[]).set_fields() == ok
    assert client.send("carrera_heartbeat", b"").set_fields() == ok
    assert client.call("sendAsync", message=Message(topic="both", body=b"b")).set_fields() == ok


def test_13_topic_rejected(client: Client) -> None:
    says(client.send("unheard-of"), 13, "unheard-of")
    says(client.send("closed"), 13, "closed")
    says(client.call("sendAsync", message=Message(topic="unheard-of", body=b"b")), 13)
    says(client.call("sendBatchSync", messages=[Message(topic="unheard-of", body=b"b")]), 13)


def test_15_over_the_rate(client: Client) -> None:
    says(next(filter(lambda result: result.code, (client.send("limited") for _ in range(5)))), 15, "limited")


def test_18_and_19_by_the_delay_mode_of_the_topic(client: Client) -> None:
    says(client.send("none", properties={"DELAY": "2"}), 18, "none")
    says(client.call("sendDelaySync", delayMessage=delayed(topic="none"), timeout=5_000), 18)
    says(client.send("only"), 19, "only")
    assert client.send("only", properties={"from_chronos": "from_chronos"}).code == 0
    assert client.send("none", properties={"DELAY": "0"}).code == 0, "level 0 is no delay"


def test_21_no_delay_service(installation: Installation, tmp_path: Path, protocol: str) -> None:
    """Producer and log alone."""
    server = RealServer(tmp_path, command="producer", installation=installation)
    try:
        with Client(server.start().ports["producer"], protocol) as client:
            result = client.call("sendDelaySync", delayMessage=delayed(), timeout=5_000)
            says(result, 21, "delay")
            assert result.uniqDelayMsgId == ""
            cancel = delayed(action=2, uniqDelayMsgId=ID)
            says(client.call("sendDelaySync", delayMessage=cancel, timeout=5_000), 21)
            assert client.send("both").code == 0
    finally:
        server.end()


def delayed(**fields: Any) -> DelayMessage:
    defaults = {
        "topic": "both", "body": b"b", "action": 1, "dmsgtype": 2, "timestamp": int(time.time()) + 60,
        "times": 0, "interval": 0, "expire": 0,
    }  # fmt: skip
    return DelayMessage(**{**defaults, **fields})


LATE = 9_999_999_999
LOOP = {"dmsgtype": 3, "times": 2, "expire": LATE, "interval": 3}
DELAY_REJECTIONS: dict[str, tuple[int, dict[str, Any], str]] = {
    "id missing": (30, {"action": 2, "uniqDelayMsgId": None}, ""),
    "id blank": (30, {"action": 2, "uniqDelayMsgId": " "}, " "),
    "id malformed": (30, {"action": 2, "uniqDelayMsgId": ID[:-1]}, ID[:-1]),
    "type of a cancel": (31, {"action": 2, "uniqDelayMsgId": ID.replace("-2-", "-5-", 1)}, "echo"),
    "type": (31, {"dmsgtype": 5}, ""),
    "type absent": (31, {"dmsgtype": None}, ""),
    "action": (32, {"action": 3}, ""),
    "action absent": (32, {"action": None}, ""),
    "timestamp too small": (33, {"timestamp": 999_999_999}, ""),
    "timestamp absent": (33, {"timestamp": None}, ""),
    "timestamp beyond 62 days": (33, {"timestamp": int(time.time()) + 63 * 86_400}, ""),
    "shard": (34, {"action": 2, "uniqDelayMsgId": ID.replace("-7-", "-16-")}, "echo"),
    "times of type 2": (35, {"times": 1}, ""),
    "times of type 3": (35, {**LOOP, "times": 0}, ""),
    "times over the limit": (35, {**LOOP, "times": 1_000_001}, ""),
    "expire": (36, {**LOOP, "expire": 1_000_000_000}, ""),
    "interval": (37, {**LOOP, "interval": 2}, ""),
    "base": (38, {**LOOP, "dmsgtype": 4, "interval": 1}, ""),
    "uuid": (30, {"uuid": "A4207970-E5E1-11F1-A4E0-02FC00000001"}, ""),
    "reschedule": (32, {"action": 100, "uniqDelayMsgId": ID}, ""),
    "fire now": (32, {"action": 101, "uniqDelayMsgId": ID}, ""),
    "unknown topic": (13, {"topic": "unheard-of"}, ""),
    "body": (11, {"body": b""}, ""),
    "body goes before topic": (11, {"body": b"", "topic": "unheard-of"}, ""),
    "topic mode goes before timestamp": (18, {"topic": "none", "timestamp": 1}, ""),
    "timestamp goes before type": (33, {"timestamp": 1, "dmsgtype": 9, "times": 7}, ""),
}


@pytest.mark.parametrize("case", DELAY_REJECTIONS)
def test_30_to_38_of_delay_requests(client: Client, case: str) -> None:
    code, fields, echoed = DELAY_REJECTIONS[case]
    result = client.call("sendDelaySync", delayMessage=delayed(**fields), timeout=5_000)
    says(result, code)
    assert set(result.set_fields()) == {"code", "msg", "uniqDelayMsgId"}
    assert result.uniqDelayMsgId == (fields["uniqDelayMsgId"] if echoed == "echo" else echoed)


UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@pytest.mark.parametrize("fields", [{}, {**LOOP, "uuid": "cd724bc0-e5e4-11f1-9717-02fc00000001"}])
def test_0_of_an_add(client: Client, fields: dict[str, Any]) -> None:
    message = delayed(**fields)
    result = client.call("sendDelaySync", delayMessage=message, timeout=5_000)
    assert set(result.set_fields()) == {"code", "msg", "uniqDelayMsgId"}
    assert (result.code, result.msg) == (0, "OK")
    due, kind, expire, times, timed, interval, shard, uuid = result.uniqDelayMsgId.split("-", 7)
    assert (int(due), int(kind)) == (message.timestamp, message.dmsgtype)
    loop = (str(LATE), "2", "3") if fields else (str(message.timestamp + 172_800), "0", "0")
    assert (expire, times, interval, timed) == (*loop, "0")
    assert int(shard) >= 0
    assert uuid == fields.get("uuid", uuid)
    assert UUID.fullmatch(uuid)


def test_0_of_a_cancel_echoes_the_id_unchanged(client: Client) -> None:
    cancel = delayed(action=2, uniqDelayMsgId=ID)
    result = client.call("sendDelaySync", delayMessage=cancel, timeout=5_000)
    assert result.set_fields() == {"code": 0, "msg": "OK", "uniqDelayMsgId": ID}


# --- codes that a healthy server does not give


@pytest.fixture(scope="module")
def failing() -> Iterator[ProducerServer]:
    server = ProducerServer([TopicInfo("orders", 0, 4)])
    yield server
    server.stop()


@pytest.mark.parametrize(
    ("code", "error", "status"),
    [
        (10, StorageError("the disk said no"), AppendStatus.NOT_STORED),
        (12, StorageError("the disk said nothing"), AppendStatus.UNKNOWN),
        (14, UnknownTopicError("queue 9 of orders does not exist"), AppendStatus.REFUSED),
    ],
)
def test_10_12_14_when_the_engine_fails(
    failing: ProducerServer, protocol: str, code: int, error: DdmqError, status: AppendStatus
) -> None:
    with Client(failing.port, protocol) as client:
        failing.do(lambda: failing.backend.fail_next(error, status))
        says(client.send("orders"), code, str(error))
        assert client.send("orders").code == 0


def test_20_while_the_server_drains(installation: Installation, tmp_path: Path) -> None:
    """A message that a client still holds keeps the drain open; sends are refused meanwhile."""
    config = write_config(tmp_path / "conf", proxy_consumer={"drain_leases_ms": 60_000})
    with running(tmp_path, config, installation=installation) as server:
        make_group(server, "g", "t")
        with Client(server.ports["producer"]) as producer, Client(server.ports["consumer"]) as consumer:
            assert producer.send("t").code == 0
            answer = consumer.pull("g", maxLingerTime=10_000)
            assert len(answer.messages) == 1
            server.terminate()
            result = refused(producer)
            says(result, 20)
            assert result.set_fields().keys() == {"code", "msg"}
            while answer.messages:  # sends before the signal were stored
                answer = consumer.pull("g", maxLingerTime=30_000, result=done(answer))
        assert server.wait(30) == 0


def refused(producer: Client) -> Result:
    """The first answer that is not 0."""

    def rejection() -> Result | None:
        result = producer.send("t")
        return result if result.code else None

    return until(rejection, "the server drains")


@pytest.mark.slow
def test_12_while_the_writer_is_stopped(tmp_path: Path) -> None:
    """Each part its own process; the one that writes is frozen, so nothing is acknowledged in time."""
    with running(tmp_path, processes=True) as server, Client(server.ports["producer"]) as producer:
        assert producer.send("t").code == 0
        writer = server.component_pids()["consumer"]
        os.kill(writer, signal.SIGSTOP)
        try:
            began = time.monotonic()
            says(producer.send("t", timeout=300), 12)
            assert time.monotonic() - began < 10, "not only at the cap"
        finally:
            os.kill(writer, signal.SIGCONT)
        assert producer.send("t").code == 0
