"""Old clients at an address without an identity, and at one whose identity lacks the right: each recorded
request is answered in the words of its contract, and nothing happens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop import anyframe
from tests.interop.anyframe import LIST, REPLY, STRUCT
from tests.interop.apache_client import Client, FetchRequest, PullError
from tests.interop.recorded import Exchange, Raw, exchanges, patient
from tests.scenarios.real_server import RealServer, write_config
from tests.support.rights import Who, write_rights

PRODUCING = ("sendSync", "sendBatchSync", "sendDelaySync")
LACKS = b"lacks the right `"
OTHER = Who("other", frozenset({("send", "other")}))


@pytest.fixture(scope="module", params=["no identity", "another topic"])
def elsewhere(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[RealServer]:
    """A server with rights on, whose clients on loopback have no identity, or one for another topic."""
    folder = tmp_path_factory.mktemp("elsewhere")
    legacy = {"127.0.0.1": OTHER.name} if request.param == "another topic" else {}
    tokens = write_rights(folder / "conf", [OTHER], legacy=legacy)
    server = RealServer(folder, write_config(folder / "conf"))
    server.token = tokens["root"]
    try:
        yield server.start()
    finally:
        server.end()


@pytest.mark.parametrize("exchange", exchanges(), ids=lambda exchange: exchange.name)
def test_a_recorded_request_is_rejected_in_the_words_of_its_contract(
    elsewhere: RealServer, exchange: Exchange
) -> None:
    request = anyframe.read(exchange.request)
    method = request.method.decode()
    kind = "producer" if method in PRODUCING else "consumer"
    with Raw(elsewhere.ports[kind]) as raw:
        answer = raw.exchange(patient(exchange.request) if kind == "producer" else exchange.request)
        reply = anyframe.read(answer)
        assert (reply.kind, reply.method, reply.sequence) == (REPLY, request.method, request.sequence)
        if method in ("submit", "ack"):
            assert answer == exchange.reply, "true: they cannot be told, and it is ignored and counted"
        elif method == "getConsumeStats":
            assert reply.fields[0][1][1] == [], "as for a group that does not exist"
        elif method == "fetch":
            assert reply.fields[0][1] == {10: (LIST, (STRUCT, []))}, "it has no field for a reason"
        else:
            assert LACKS in answer
        assert raw.exchange(exchange.request)[:4], "the connection goes on"
    assert elsewhere.admin("GET", "topics") == elsewhere.admin("GET", "groups") == []


def test_an_old_client_is_told_by_code_and_text(elsewhere: RealServer, protocol: str) -> None:
    with Client(elsewhere.ports["producer"], protocol) as producer:
        result = producer.send("orders")
        assert (result.code, result.set_fields().keys()) == (13, {"code", "msg"})
        assert "lacks the right `send orders`" in result.msg
    with Client(elsewhere.ports["consumer"], protocol) as consumer:
        with pytest.raises(PullError, match="lacks the right `consume billing`") as caught:
            consumer.pull("billing", "orders")
        assert caught.value.code == 13
        request = FetchRequest(consumerId="c", groupId="billing", cluster="", maxBatchSize=1, maxLingerTime=0)
        assert consumer.call("fetch", request=request).set_fields() == {"results": []}
