"""Rights on the Thrift ports of real servers: every method by every identity, and changes of the rules."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ddmq_client import (
    Admin,
    Consumer,
    LoginError,
    NotAllowedError,
    OptionError,
    OutgoingMessage,
    Producer,
)
from ddmq_client.aio import AsyncAdmin, AsyncProducer
from ddmq_client.idl import consumer, producer
from ddmq_client.idl.codes import DelayAction
from ddmq_common.security.files import TOKENS_FILE, write_tokens
from ddmq_rpc.codec import methods
from tests.scenarios.secured_servers import LAYOUTS, SecuredServers, secured
from tests.support.rights import SERVICES, C, Need, P, TokenClient, everybody, is_rejected
from tests.support.waits import until

pytestmark = pytest.mark.slow
PEOPLE = everybody()
MINE, TEAM = ("consume", "mine"), ("consume", "team")
CONTEXT = C.Context(groupId="team", topic="mine", qid="none_none_0")
RESULT = C.ConsumeResult(context=CONTEXT, successOffsets=[10_000], failOffsets=[])


def message(topic: str = "mine") -> Any:
    return P.Message(topic=topic, key="", tags="", body=b"x")


def delay(action: int, **fields: Any) -> Any:
    body = b"x" if action == DelayAction.ADD else None
    return P.DelayMessage(topic="mine", tags="", action=action, clientId="t", body=body, **fields)


def transaction(kind: type, **fields: Any) -> Any:
    identity = "01890000000070008000000000000000"
    return kind(transactionId=identity, producerGroup="pay", clientId="t", **fields)


def fetch(**fields: Any) -> Any:
    return C.FetchRequest(consumerId="c", groupId="crew", cluster="", clientId="t", **fields)


ONEWAY = ("sendOneway",)
SILENT = (*ONEWAY, "sendBatch", "submit", "getConsumeStats", "ack")  # their answers have no code of their own
# Each call with the rights that it needs (docs/security.md).
CALLS: list[tuple[str, str, dict[str, Any], set[Need]]] = [
    ("producer", "sendSync", {"message": message(), "timeout": 0}, {("send", "mine")}),
    (
        "producer",
        "sendSync",
        {"message": message("fresh"), "timeout": 0},
        {("send", "fresh"), ("create", "fresh")},
    ),
    ("producer", "sendAsync", {"message": message()}, {("send", "mine")}),
    (
        "producer",
        "sendBatchSync",
        {"messages": [message(), message("fresh")]},
        {("send", "mine"), ("send", "fresh"), ("create", "fresh")},
    ),
    (
        "producer",
        "sendBatch",
        {"messages": [message(), message("fresh")], "timeout": 0},
        {("send", "mine"), ("send", "fresh"), ("create", "fresh")},
    ),
    ("producer", "sendOneway", {"message": message()}, {("send", "mine")}),
    (
        "producer",
        "sendDelaySync",
        {"delayMessage": delay(DelayAction.ADD, dmsgtype=5, delayMs=10**7), "timeout": 0},
        {("send", "mine")},
    ),
    *(
        (
            "producer",
            "sendDelaySync",
            {"delayMessage": delay(action, uniqDelayMsgId=str(uuid4()), dueMs=4 * 10**12), "timeout": 0},
            {("send", "mine")},
        )
        for action in (DelayAction.CANCEL, DelayAction.RESCHEDULE, DelayAction.FIRE)
    ),
    (
        "producer",
        "sendPrepared",
        {"request": transaction(P.PrepareRequest, messages=[message()])},
        {("transact", "pay"), ("send", "mine")},
    ),
    (
        "producer",
        "sendPrepared",
        {"request": transaction(P.PrepareRequest, messages=[message()], forwardedBy="x:1")},
        {("node", "")},
    ),
    (
        "producer",
        "endTransaction",
        {"request": transaction(P.EndTransactionRequest, action=12)},
        {("transact", "pay")},
    ),
    (
        "producer",
        "endTransaction",
        {"request": transaction(P.EndTransactionRequest, action=12, forwardedBy="x:1")},
        {("node", "")},
    ),
    (
        "producer",
        "pollTransactionChecks",
        {"request": P.PollChecksRequest(producerGroup="pay", clientId="t", countMax=1, timeout=0)},
        {("transact", "pay")},
    ),
    (
        "producer",
        "pollTransactionChecks",
        {
            "request": P.PollChecksRequest(
                producerGroup="pay", clientId="t", countMax=1, timeout=0, forwardedBy="x:1"
            )
        },
        {("node", "")},
    ),
    ("producer", "callEngine", {"data": b"", "timeout": 0}, {("node", "")}),
    (
        "consumer",
        "pull",
        {"request": C.PullRequest(groupId="team", topic="mine", clientId="t")},
        {MINE, TEAM},
    ),
    ("consumer", "pull", {"request": C.PullRequest(groupId="team", clientId="t")}, {MINE, TEAM}),
    (
        "consumer",
        "pull",
        {"request": C.PullRequest(groupId="band", topic="fresh", clientId="t", start="first")},
        {("consume", "band"), ("consume", "fresh"), ("create", "band")},
    ),
    (
        "consumer",
        "pull",
        {"request": C.PullRequest(groupId="band", topic="%DLQ%crew", clientId="t")},
        {("consume", "band"), ("consume", "crew"), ("create", "band")},
    ),
    (
        "consumer",
        "pull",
        {
            "request": C.PullRequest(
                groupId="team", topic="mine", result=C.ConsumeResult(context=CONTEXT, forwardedBy="x:1")
            )
        },
        {("node", "")},
    ),
    ("consumer", "submit", {"result": RESULT}, {MINE, TEAM}),
    ("consumer", "submit", {"result": C.ConsumeResult(context=CONTEXT, forwardedBy="x:1")}, {("node", "")}),
    ("consumer", "settle", {"request": C.SettleRequest(result=RESULT)}, {MINE, TEAM}),
    ("consumer", "settle", {"request": C.SettleRequest(groupId="team", clientId="t2", leave=True)}, {TEAM}),
    (
        "consumer",
        "reply",
        {
            "request": C.ReplyRequest(
                context=CONTEXT,
                offset=1,
                lease=1,
                messages=[C.ReplyMessage(topic="fresh", body=b"", key="", tags="")],
            )
        },
        {MINE, TEAM, ("send", "fresh"), ("create", "fresh")},
    ),
    (
        "consumer",
        "reply",
        {"request": C.ReplyRequest(context=CONTEXT, offset=1, lease=1, messages=[], forwardedBy="x:1")},
        {("node", "")},
    ),
    ("consumer", "getConsumeStats", {"request": C.ConsumeStatsRequest(group="team")}, {("describe", "team")}),
    (
        "consumer",
        "fetch",
        {"request": fetch(topics=["mine"], model="broadcasting")},
        {MINE, ("consume", "crew")},
    ),
    ("consumer", "fetch", {"request": fetch()}, {MINE, ("consume", "crew")}),
    (
        "consumer",
        "fetch",
        {"request": fetch(topics=["mine"], model="broadcasting", exact=True)},
        {MINE, ("consume", "crew")},
    ),
    ("consumer", "fetch", {"request": fetch(leave=True)}, {MINE, ("consume", "crew")}),
    (
        "consumer",
        "ack",
        {"result": C.AckResult(consumerId="c", groupId="crew", cluster="", offsets={})},
        {("consume", "crew")},
    ),
]


@pytest.fixture(scope="module", params=LAYOUTS)
def setting(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[SecuredServers]:
    with secured(tmp_path_factory.mktemp("rights"), request.param, PEOPLE) as servers:
        yield servers


def test_the_matrix_has_every_method() -> None:
    named = {(kind, method) for kind, method, _, _ in CALLS} | {(kind, "authenticate") for kind in SERVICES}
    assert named == {("producer", name) for name in methods(producer, "ProducerService")} | {
        ("consumer", name) for name in methods(consumer, "ConsumerService")
    }


def test_no_method_does_what_the_matrix_forbids(setting: SecuredServers) -> None:
    check_matrix(setting)


def test_the_usage_of_all_processes_is_added_up(setting: SecuredServers) -> None:
    """What one identity does at the producer proxy and at the consumer proxy, in whatever processes."""

    def read_usage(number: int) -> dict[str, Any]:
        rows = setting.servers[number].admin("GET", "usage")
        return next(
            (row for row in rows if row["identity"] == "everything"), {"connections": 0, "requests": 0}
        )

    before = read_usage(0)
    clients = [setting.client(kind, "everything", at) for at, kind in enumerate(("producer", "consumer"))]
    clients[0].call("sendSync", message=message())
    clients[1].call("submit", result=RESULT)
    for number in range(len(setting.servers)):
        after = read_usage(number)
        assert after["connections"] == before["connections"] + 2
        assert after["requests"] >= before["requests"] + 2
        listed = setting.servers[number].request("GET", "/usage?form=2&text=everything")[1]
        assert (listed["items"][0]["connections"], listed["missing"]) == (after["connections"], {})


@pytest.mark.kafka
def test_no_method_does_on_kafka_what_the_matrix_forbids(tmp_path: Path) -> None:
    with secured(tmp_path, "one process", PEOPLE, "kafka") as servers:
        check_matrix(servers)


def check_matrix(setting: SecuredServers) -> None:
    """Every method by every identity: what a right is missing for is rejected, and in the audit log."""
    rejected: set[tuple[str, str, str]] = set()
    # who may make a topic comes last
    for at, who in enumerate(sorted(PEOPLE, key=lambda each: each.name == "everything")):
        clients = {kind: setting.client(kind, who.name, at) for kind in ("producer", "consumer")}
        assert all(
            each.login.code == 0 and each.login.identity == who.name.encode() for each in clients.values()
        )
        for kind, method, arguments, needs in CALLS:
            makes_it = {("create", "fresh"), ("create", "band")} & needs
            if makes_it and who.has_all(needs) and who.name != "everything":
                continue  # it would exist then
            if method == "fetch":  # an id belongs to the first identity that uses it
                arguments["request"].consumerId = f"c-{uuid4()}"
            client = clients[kind]
            answer = (
                client.send(method, **arguments) if method in ONEWAY else client.call(method, **arguments)
            )
            if method not in SILENT:
                assert is_rejected(answer) is not who.has_all(needs), (who.name, method, arguments, answer)
            if not who.has_all(needs):
                reasons = {describe_missing(who.name, need) for need in needs if not who.has(need)}
                rejected |= {(who.name, method, reason) for reason in reasons}
        for client in clients.values():
            client.__exit__()
    assert {method for _, method, _ in rejected} == {method for _, method, _, needs in CALLS if needs}
    until(lambda: is_recorded(rejected, setting.rejections()), "each is in the audit log")


def describe_missing(who: str, need: Need) -> str:
    return f"identity {who!r} lacks the right `{' '.join(need).rstrip()}`"


def is_recorded(rejected: set[tuple[str, str, str]], recorded: set[tuple[str, str, str]]) -> bool:
    """Whether every rejected call has a line, which names one of the rights that are missing; and no other
    call of the matrix has one."""
    calls = {(who, method) for who, method, _ in rejected}
    known = {entry for entry in recorded if entry[:2] in calls}
    assert known <= rejected, known - rejected
    names = {who.name for who in PEOPLE}
    assert {entry[:2] for entry in recorded if entry[0] in names} <= calls
    return {entry[:2] for entry in known} == calls


def test_nobody_gets_anything_without_a_login(setting: SecuredServers) -> None:
    for kind, method, arguments, _ in CALLS:
        with setting.client(kind, "") as client:
            if method not in SILENT:
                answer = client.call(method, **arguments)
                assert is_rejected(answer), (method, answer)


def stored(setting: SecuredServers) -> int:
    with setting.client("consumer") as client:
        (stats,) = client.call("getConsumeStats", request=C.ConsumeStatsRequest(group="team", topic="mine"))
        return sum(stats.produceOffsets.values())


def test_forbidden_messages_of_a_batch_and_oneway_sends_are_not_stored(setting: SecuredServers) -> None:
    with setting.client("producer", "no-send-fresh") as client:
        answers = client.call(
            "sendBatch", messages=[message("fresh"), message(), message("fresh")], timeout=0
        )
        assert [answer.code for answer in answers] == [13, 0, 13]
        assert answers[0].msg == (
            b"FAILED: identity 'no-send-fresh' lacks the right `send fresh`; allowed: what the rules in "
            b"security.yaml allow"
        )
    before = stored(setting)
    with setting.client("producer", "no-send-mine") as client:
        client.send("sendOneway", message=message())
        assert is_rejected(client.call("sendSync", message=message(), timeout=0))
    assert stored(setting) == before


def with_messages(pulled: Any) -> Any:
    """A response to a pull, if it has messages."""
    return pulled if pulled.messages else None


def test_results_for_a_foreign_group_are_ignored_element_by_element(setting: SecuredServers) -> None:
    """A second element of the linked list names another group, whose messages stay unfinished."""
    with setting.client("producer") as client:
        assert client.call("sendSync", message=message(), timeout=0).code == 0
    request = C.PullRequest(groupId="team", topic="mine", clientId="h", maxLingerTime=5_000)
    with setting.client("consumer") as honest, setting.client("consumer", "no-consume-team") as other:
        pulled = until(lambda: with_messages(honest.call("pull", request=request)), "the message")
        offsets = [each.offset for each in pulled.messages]
        foreign = C.ConsumeResult(context=pulled.context, successOffsets=offsets, failOffsets=[])
        own = C.Context(groupId="crew", topic="mine", qid=pulled.context.qid)
        linked = C.ConsumeResult(context=own, successOffsets=[], failOffsets=[], nextResult=foreign)
        assert other.call("submit", result=linked) is True
        assert is_rejected(other.call("settle", request=C.SettleRequest(result=linked)))
        (stats,) = honest.call("getConsumeStats", request=C.ConsumeStatsRequest(group="team", topic="mine"))
        assert sum(stats.consumeOffsets.values()) <= offsets[0]
        with setting.client("consumer", "nothing") as stranger:
            assert stranger.call("getConsumeStats", request=C.ConsumeStatsRequest(group="team")) == []
        leases = [each.leaseId for each in pulled.messages]
        foreign.successLeases = leases
        assert honest.call("settle", request=C.SettleRequest(result=foreign)).late in (None, [])


def test_a_foreign_cancel_changes_nothing_and_leaves_no_tombstone(setting: SecuredServers) -> None:
    """The topic that a change states is compared with the stored message."""
    uuid, late = str(uuid4()), str(uuid4())
    add = delay(DelayAction.ADD, dmsgtype=5, delayMs=10**7, uuid=uuid)
    with setting.client("producer") as client, setting.client("producer", "no-send-mine") as other:
        assert client.call("sendDelaySync", delayMessage=add, timeout=0).outcome == 1
        for action in (DelayAction.CANCEL, DelayAction.RESCHEDULE, DelayAction.FIRE):
            for identity in (uuid, late):
                change = delay(action, uniqDelayMsgId=identity, delayMs=10**6)
                change.topic = "team"
                answer = other.call("sendDelaySync", delayMessage=change, timeout=0)
                assert (answer.code, answer.outcome) == (0, 4), answer
        add.uuid = late
        assert client.call("sendDelaySync", delayMessage=add, timeout=0).outcome == 1
        cancel = delay(DelayAction.CANCEL, uniqDelayMsgId=uuid)
        assert client.call("sendDelaySync", delayMessage=cancel, timeout=0).outcome == 2


def test_a_consumer_id_belongs_to_the_identity_that_fetches_with_it(setting: SecuredServers) -> None:
    request = C.FetchRequest(consumerId="own", groupId="crew", cluster="", clientId="t")
    with setting.client("consumer", "everything") as first, setting.client("consumer") as second:
        assert first.call("fetch", request=request).code is None
        answer = second.call("fetch", request=request)
        assert answer.code == 13
        assert b"another identity" in answer.error


def test_a_changed_file_reaches_connected_clients_and_a_waiting_pull(setting: SecuredServers) -> None:
    conf = setting.conf
    text = (conf / "security.yaml").read_text()
    request = C.PullRequest(groupId="team", topic="mine", clientId="w", maxLingerTime=60_000)
    with (
        setting.client("consumer", "everything") as waiting,
        setting.client("producer", "everything") as sender,
    ):
        waiting.send("pull", request=request)
        tree = json.loads(text)
        tree["identities"]["everything"] = {"allow": []}
        (conf / "security.yaml").write_text(json.dumps(tree))
        answer = waiting.read()
        while not is_rejected(answer):  # a message came first
            waiting.send("pull", request=request)
            answer = waiting.read()
        until(
            lambda: is_rejected(sender.call("sendSync", message=message(), timeout=0)),
            "the rules are in force",
        )
        (conf / "security.yaml").write_text("identities: nonsense")
        (conf / "security.yaml").write_text(text)
        until(
            lambda: not is_rejected(sender.call("sendSync", message=message(), timeout=0)),
            "the rules are back",
        )


def test_a_revoked_token_ends_its_connection_while_it_pulls(setting: SecuredServers) -> None:
    path = setting.conf / TOKENS_FILE
    before = path.read_bytes()
    request = C.PullRequest(groupId="team", topic="fresh-and-empty", clientId="w", maxLingerTime=60_000)
    with setting.client("consumer") as waiting:
        waiting.send("pull", request=request)
        write_tokens(path, {})
        with pytest.raises((EOFError, ConnectionError)):
            waiting.read()
        with TokenClient("consumer", setting.server.ports["consumer"]) as other:
            answer = other.log_in(setting.tokens["root"])
            assert answer.code == 13
            with pytest.raises((EOFError, ConnectionError)), suppress(BrokenPipeError):
                other.read()
        path.write_bytes(before)
        until(lambda: setting.client("consumer").login.code == 0, "the token is back")


def test_the_clients_log_in_with_a_token_a_file_or_the_environment(
    setting: SecuredServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer_at, consumer_at = setting.server.address("producer"), setting.server.address("consumer")
    token = setting.tokens["everything"]
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(token + "\n")
    reads: list[int] = []

    def read_token() -> str:
        reads.append(1)
        return token

    with Producer(producer_at, token=read_token) as sender:
        sender.send("mine", b"by a client")
        sender.send_oneway(OutgoingMessage("mine", b"by a client, too"))
        sender.send("mine", b"again")
        assert len(reads) == 1
    other = Producer(producer_at, token=setting.tokens["no-send-mine"], timeout_ms=5_000)
    with other, pytest.raises(NotAllowedError, match="lacks the right `send mine`"):
        other.send("mine", b"x")
    wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
    with Producer(producer_at, token=wrong, timeout_ms=500) as stranger:
        with pytest.raises(LoginError, match="the login was rejected") as caught:
            stranger.send("mine", b"x")
        assert wrong not in str(caught.value) + repr(stranger) + repr(vars(stranger))
    with Consumer(consumer_at, "team", "mine", token_file=file) as consumer:
        assert next(iter(consumer)).topic == "mine"
    with Admin(setting.server.address("admin"), token_file=file) as admin:
        assert any(topic.name == "mine" for topic in admin.list_topics())
    file.chmod(0o644)
    sender = Producer(producer_at, token_file=file, timeout_ms=500)
    with sender, pytest.raises(LoginError, match="others may read the token"):
        sender.send("mine", b"x")
    monkeypatch.setenv("DDMQ_TOKEN", token)
    with Producer(producer_at) as sender:
        sender.send("mine", b"by the environment")
    with pytest.raises(OptionError, match="both set"):
        Producer(producer_at, token=token, token_file=file)

    async def send_and_read() -> None:
        async with AsyncProducer(producer_at, token=token) as producing:
            await producing.send("mine", b"by asyncio")
        async with AsyncAdmin(setting.server.address("admin"), token=token) as admin:
            assert await admin.list_topics()

    asyncio.run(send_and_read())
