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
    NoSuchTopicError,
    NotStoredError,
    OptionError,
    OutgoingMessage,
    Producer,
)
from ddmq_client.aio import AsyncAdmin, AsyncProducer
from ddmq_client.idl import consumer, producer
from ddmq_client.idl.codes import DelayAction
from ddmq_common.security.files import TOKENS_FILE, write_tokens
from ddmq_rpc.codec import methods
from tests.scenarios.real_server import RealServer
from tests.support.rights import C, Need, P, TokenClient, everybody, is_rejected, write_rights
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
    return C.FetchRequest(consumerId=f"c-{uuid4()}", groupId="crew", cluster="", clientId="t", **fields)


# Each call with the rights that it needs (docs/security.md), or None: it has no visible rejection.
CALLS: list[tuple[str, str, dict[str, Any], set[Need] | None]] = [
    ("producer", "authenticate", {"request": P.AuthRequest(mechanism="none")}, None),
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
    ("producer", "sendBatch", {"messages": [message(), message("fresh")], "timeout": 0}, None),
    ("producer", "sendOneway", {"message": message()}, None),
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
    ("consumer", "authenticate", {"request": C.AuthRequest(mechanism="none")}, None),
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
    ("consumer", "submit", {"result": RESULT}, None),
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
    ("consumer", "getConsumeStats", {"request": C.ConsumeStatsRequest(group="team")}, None),
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
        None,
    ),
]


class ServerWithRights:
    def __init__(self, server: RealServer, tokens: dict[str, str]) -> None:
        self.server = server
        self.tokens = tokens

    def client(self, kind: str, who: str = "root") -> TokenClient:
        return TokenClient(kind, self.server.ports[kind], self.tokens[who] if who else "")


@pytest.fixture(scope="module", params=[False, True], ids=["one process", "processes"])
def setting(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ServerWithRights]:
    folder = tmp_path_factory.mktemp("rights")
    tokens = write_rights(folder / "conf", PEOPLE)
    (folder / "conf" / "topics.yaml").write_text(json.dumps({"topics": {"mine": {"queues": 1}}}))
    topics = {"mine": {"model": "broadcasting"}}
    groups = {"team": {"topics": {"mine": {"start": "first"}}}, "crew": {"topics": topics}}
    (folder / "conf" / "groups.yaml").write_text(json.dumps({"groups": groups}))
    server = RealServer(folder, folder / "conf", request.param)
    try:
        yield ServerWithRights(server.start(), tokens)
    finally:
        server.end()


def test_the_matrix_has_every_method() -> None:
    named = {(kind, method) for kind, method, _, _ in CALLS}
    assert named == {("producer", name) for name in methods(producer, "ProducerService")} | {
        ("consumer", name) for name in methods(consumer, "ConsumerService")
    }


def test_no_method_does_what_the_matrix_forbids(setting: ServerWithRights) -> None:
    for who in sorted(PEOPLE, key=lambda each: each.name == "everything"):  # who may make a topic comes last
        clients = {kind: setting.client(kind, who.name) for kind in ("producer", "consumer")}
        assert all(
            each.login.code == 0 and each.login.identity == who.name.encode() for each in clients.values()
        )
        for kind, method, arguments, needs in CALLS:
            if needs is None:
                continue
            makes_it = {("create", "fresh"), ("create", "band")} & needs
            if makes_it and who.has_all(needs) and who.name != "everything":
                continue  # it would exist then
            answer = clients[kind].call(method, **arguments)
            assert is_rejected(answer) is not who.has_all(needs), (who.name, method, arguments, answer)
        for client in clients.values():
            client.__exit__()


def test_nobody_gets_anything_without_a_login(setting: ServerWithRights) -> None:
    for kind, method, arguments, needs in CALLS:
        with setting.client(kind, "") as client:
            if needs is not None:
                answer = client.call(method, **arguments)
                assert is_rejected(answer), (method, answer)


def stored(setting: ServerWithRights) -> int:
    with setting.client("consumer") as client:
        (stats,) = client.call("getConsumeStats", request=C.ConsumeStatsRequest(group="team", topic="mine"))
        return sum(stats.produceOffsets.values())


def test_forbidden_messages_of_a_batch_and_oneway_sends_are_not_stored(setting: ServerWithRights) -> None:
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


def test_results_for_a_foreign_group_are_ignored_element_by_element(setting: ServerWithRights) -> None:
    """A second element of the linked list names another group, whose messages stay unfinished."""
    with setting.client("producer") as client:
        assert client.call("sendSync", message=message(), timeout=0).code == 0
    request = C.PullRequest(groupId="team", topic="mine", clientId="h", maxLingerTime=5_000)
    with setting.client("consumer") as honest, setting.client("consumer", "no-consume-team") as other:
        pulled = honest.call("pull", request=request)
        offsets = [each.offset for each in pulled.messages]
        assert offsets
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


def test_a_foreign_cancel_changes_nothing_and_leaves_no_tombstone(setting: ServerWithRights) -> None:
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


def test_a_consumer_id_belongs_to_the_identity_that_fetches_with_it(setting: ServerWithRights) -> None:
    request = C.FetchRequest(consumerId="own", groupId="crew", cluster="", clientId="t")
    with setting.client("consumer", "everything") as first, setting.client("consumer") as second:
        assert first.call("fetch", request=request).code is None
        answer = second.call("fetch", request=request)
        assert answer.code == 13
        assert b"another identity" in answer.error


def test_a_changed_file_reaches_connected_clients_and_a_waiting_pull(setting: ServerWithRights) -> None:
    conf = setting.server.folder / "conf"
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


def test_a_revoked_token_ends_its_connection_while_it_pulls(setting: ServerWithRights) -> None:
    path = setting.server.folder / "conf" / TOKENS_FILE
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
    setting: ServerWithRights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    with other, pytest.raises(NoSuchTopicError, match="lacks the right `send mine`"):
        other.send("mine", b"x")
    wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
    with Producer(producer_at, token=wrong, timeout_ms=500) as stranger:
        with pytest.raises(NotStoredError, match="the login was rejected") as caught:
            stranger.send("mine", b"x")
        assert wrong not in str(caught.value) + repr(stranger) + repr(vars(stranger))
    with Consumer(consumer_at, "team", "mine", token_file=file) as consumer:
        assert next(iter(consumer)).topic == "mine"
    with Admin(setting.server.address("admin"), token_file=file) as admin:
        assert any(topic.name == "mine" for topic in admin.list_topics())
    file.chmod(0o644)
    sender = Producer(producer_at, token_file=file, timeout_ms=500)
    with sender, pytest.raises(NotStoredError, match="others may read the token"):
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
