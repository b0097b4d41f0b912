"""The quotas for work that is under way, at the ports of a real server, and what they leave to others: in one
process, and with a process for each component."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from ddmq_client.idl.codes import DelayAction
from tests.scenarios.real_server import RealServer
from tests.support.rights import AdminClient, C, P, TokenClient, Who, write_rights
from tests.support.transaction_calls import ROLLBACK, new_id
from tests.support.waits import until

pytestmark = pytest.mark.slow
GRANTS = frozenset(
    {
        ("metrics", ""), ("transact", "pay"), ("send", "mine"), ("consume", "mine"), ("consume", "team"),
        ("create", "team"), ("create", "one"), ("create", "two"), ("create", "crew"), ("consume", "crew"),
    }
)  # fmt: skip
QUOTAS = {
    "waiting_calls": 1, "in_flight": 2, "open_transactions": 1, "pending_delays": 2, "idempotency_keys": 2,
    "producers": 1, "created_per_hour": 2,
}  # fmt: skip


class QuotaServer:
    def __init__(self, server: RealServer, tokens: dict[str, str]) -> None:
        self.server = server
        self.tokens = tokens

    def producer(self, who: str) -> TokenClient:
        return TokenClient("producer", self.server.ports["producer"], self.tokens[who])

    def consumer(self, who: str) -> TokenClient:
        return TokenClient("consumer", self.server.ports["consumer"], self.tokens[who])

    def admin(self, who: str) -> AdminClient:
        return AdminClient(self.server.ports["admin"], self.tokens[who])

    def usage(self, who: str) -> dict[str, Any]:
        """What an identity uses of all processes together."""
        rows = self.admin("app").request("GET", "usage")[1]
        return next((row for row in rows if row["identity"] == who), Counter[str]())


@pytest.fixture(scope="module", params=["one process", "processes"])
def setting(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[QuotaServer]:
    folder = tmp_path_factory.mktemp("work")
    tokens = write_rights(folder / "conf", [Who("app", GRANTS), Who("small", GRANTS)])
    path = folder / "conf" / "security.yaml"
    tree = json.loads(path.read_text())
    tree["identities"]["small"]["quotas"] = QUOTAS
    path.write_text(json.dumps(tree))
    (folder / "conf" / "topics.yaml").write_text(json.dumps({"topics": {"mine": {"queues": 1}}}))
    server = RealServer(folder, folder / "conf", request.param == "processes")
    try:
        yield QuotaServer(server.start(), tokens)
    finally:
        server.end()


def send(client: TokenClient, **fields: Any) -> Any:
    stated = P.Message(topic="mine", key="", tags="", body=b"body", clientId="till-7", **fields)
    return client.call("sendSync", message=stated, timeout=0)


def check_over(code: int, text: bytes, quota: str) -> None:
    assert (code, b"allowed: " in text, f"({quota} in security.yaml); retry in ".encode() in text) == (
        15, True, True,
    ), text  # fmt: skip


def pull(client: TokenClient, **fields: Any) -> Any:
    request = C.PullRequest(groupId="team", topic="mine", clientId="t", start="first", **fields)
    return client.call("pull", request=request)


def test_messages_in_flight_are_bounded_until_some_are_finished(setting: QuotaServer) -> None:
    producer, small, app = setting.producer("app"), setting.consumer("small"), setting.consumer("app")
    for _ in range(6):
        assert send(producer).code == 0
    received: list[Any] = []
    while sum(len(answer.messages) for answer in received) < 2:
        received.append(pull(small, maxLingerTime=2_000))
    assert [len(answer.messages) for answer in received if answer.messages] == [2]
    assert setting.usage("small")["in_flight"] == 2
    rejected = pull(small)
    check_over(rejected.code, rejected.message, "in_flight")
    others = pull(app, maxBatchSize=1)
    assert len(others.messages) == 1
    assert small.call("submit", result=finish(received[-1]))
    until(lambda: setting.usage("small")["in_flight"] == 0)
    more = pull(small)
    assert len(more.messages) == 2
    assert small.call("submit", result=finish(more))
    assert app.call("submit", result=finish(others))


def finish(answer: Any) -> Any:
    return C.ConsumeResult(
        context=answer.context, successOffsets=[message.offset for message in answer.messages], failOffsets=[]
    )


def test_calls_that_wait_are_bounded(setting: QuotaServer) -> None:
    first, second = setting.consumer("small"), setting.consumer("small")
    request = C.PullRequest(groupId="crew", topic="mine", clientId="t", maxLingerTime=20_000)
    first.send("pull", request=request)
    until(lambda: setting.usage("small")["waiting_calls"] == 1)
    rejected = second.call("pull", request=request)
    check_over(rejected.code, rejected.message, "waiting_calls")
    poll = P.PollChecksRequest(producerGroup="pay", clientId="t", countMax=1, timeout=100)
    poller, waiting = setting.producer("small"), setting.producer("small")
    if setting.server.processes:  # the process of the producer proxy counts its own calls alone
        assert poller.call("pollTransactionChecks", request=poll).code == 0
        poll.timeout = 20_000
        waiting.send("pollTransactionChecks", request=poll)
        until(lambda: setting.usage("small")["waiting_calls"] == 2)
    answer = poller.call("pollTransactionChecks", request=poll)
    check_over(answer.code, answer.msg, "waiting_calls")
    first.__exit__()
    waiting.__exit__()
    until(lambda: setting.usage("small")["waiting_calls"] == 0)


def test_open_transactions_are_bounded_until_one_ends(setting: QuotaServer) -> None:
    small, app = setting.producer("small"), setting.producer("app")

    def prepare(client: TokenClient, transaction: str) -> Any:
        request = P.PrepareRequest(
            transactionId=transaction, producerGroup="pay", clientId="t", checkAfterMs=600_000,
            messages=[P.Message(topic="mine", key="", tags="", body=b"x")],
        )  # fmt: skip
        return client.call("sendPrepared", request=request)

    first = new_id()
    assert prepare(small, first).code == 0
    assert prepare(small, first).code == 0, "a further message of an open transaction"
    rejected = prepare(small, new_id())
    check_over(rejected.code, rejected.msg, "open_transactions")
    assert prepare(app, new_id()).code == 0
    assert setting.usage("small")["open_transactions"] == 1
    end = P.EndTransactionRequest(transactionId=first, producerGroup="pay", action=ROLLBACK, clientId="t")
    assert small.call("endTransaction", request=end).code == 0
    until(lambda: prepare(small, new_id()).code == 0)


def test_pending_delays_are_bounded_by_identity(setting: QuotaServer) -> None:
    small, app = setting.producer("small"), setting.producer("app")

    def delay(client: TokenClient) -> Any:
        stated = P.DelayMessage(
            topic="mine", tags="", body=b"x", action=DelayAction.ADD, dmsgtype=5, delayMs=10**7,
            uuid=str(uuid4()), clientId="t",
        )  # fmt: skip
        return client.call("sendDelaySync", delayMessage=stated, timeout=0)

    answers: list[Any] = []

    def is_full() -> bool:
        answers.append(delay(small))
        return bool(answers[-1].code == 15)

    until(is_full)
    check_over(answers[-1].code, answers[-1].msg, "pending_delays")
    assert delay(app).code == 0
    assert setting.usage("small")["pending_delays"] >= 2
    later = {"topic": "mine", "body": "x", "delay_ms": 10**7}
    status, answer = setting.admin("small").request("POST", "messages", body=later)
    assert (status, "(pending_delays in security.yaml); retry in " in answer["error"]) == (429, True), answer
    assert setting.admin("app").request("POST", "messages", body=later)[0] == 200
    until(lambda: setting.usage("app")["pending_delays"] == 2, "the message counts for its sender")


def test_keys_and_producers_are_bounded_by_identity(setting: QuotaServer) -> None:
    small, app = setting.producer("small"), setting.producer("app")
    assert [send(small, idempotencyKey=f"key {number}").code for number in range(2)] == [0, 0]
    rejected = send(small, idempotencyKey="key 2")
    check_over(rejected.code, rejected.msg, "idempotency_keys")
    stated = {"topic": "mine", "body": "body", "idempotency_key": "key 3"}
    status, answer = setting.admin("small").request("POST", "messages", body=stated)
    assert (status, "(idempotency_keys in security.yaml); retry in " in answer["error"]) == (429, True), (
        answer
    )
    again = setting.admin("small").request("POST", "messages", body=stated | {"idempotency_key": "key 1"})[1]
    assert again["duplicate"], "the key is that of its identity, whichever port it came by"
    assert send(app, idempotencyKey="key 2").code == 0
    assert send(small, sequence=0, producerId=b"first").code == 0
    rejected = send(small, sequence=0, producerId=b"second")
    check_over(rejected.code, rejected.msg, "producers")
    assert send(small, sequence=1, producerId=b"first").code == 0
    used = setting.usage("small")
    assert (used["idempotency_keys"], used["producers"]) == (2, 1)


def test_topics_and_subscriptions_made_by_the_admin_port_count(setting: QuotaServer) -> None:
    admin = setting.admin("small")
    before = setting.usage("small")["created"]
    answers = [admin.request("POST", "topics", name, body={"queues": 1}) for name in ("one", "two")]
    rejected = next(text for status, text in answers if status == 429)
    assert "(created_per_hour in security.yaml); retry in " in rejected["error"]
    assert setting.usage("small")["created"] <= before + 1
    assert setting.admin("app").request("POST", "topics", "two", body={"queues": 1})[0] == 200


def test_usage_is_in_the_metrics(setting: QuotaServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", setting.server.ports["admin"], timeout=30)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {setting.tokens['app']}"})
    text = connection.getresponse().read().decode()
    connection.close()
    assert 'ddmq_identity_usage{identity="small",quota="idempotency_keys"} 2' in text
    assert 'ddmq_identity_usage{identity="small",quota="pending_delays"} ' in text
