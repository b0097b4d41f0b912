"""A secured server attacked from outside: by somebody without a login, by an identity with few rights, and by
a page in a browser (docs/security.md, threat model). After each attack, an honest client is still served.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from ddmq.server.admin.api import ROUTES
from ddmq_client.idl.codes import DelayAction
from ddmq_rpc.client_side import encode_call
from tests.scenarios.real_server import RealServer, write_config
from tests.support.certificates import write_certificates
from tests.support.rights import SERVICES, WAIT_S, C, P, TokenClient, Who, is_rejected, write_rights
from tests.support.waits import until

SECRET = "card 4111"
TLS = {
    "certificate": "server.crt", "key": "server.key", "client_ca": "ca.crt", "producer": "required",
    "consumer": "required", "admin": "required",
}  # fmt: skip
RIGHTS_OF_NAMES = ("send", "consume", "transact", "create", "operate", "manage", "browse")
VICTIM = Who("victim", frozenset((right, "theirs") for right in RIGHTS_OF_NAMES))
MALLORY = Who("mallory", frozenset((right, "mine") for right in RIGHTS_OF_NAMES) | {("metrics", "")})
FORGED = {"X-Ddmq-Identity": "root", "X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1;by=root",
          "X-Real-Ip": "127.0.0.1", "X-Forwarded-User": "root"}  # fmt: skip


class TlsServer:
    """A server that requires TLS and logins, and its clients."""

    def __init__(self, server: RealServer, tokens: dict[str, str]) -> None:
        self.server, self.tokens = server, tokens
        assert server.config is not None
        self._context = ssl.create_default_context(cafile=str(server.config / "ca.crt"))

    def connect(self, kind: str) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.server.ports[kind]), timeout=WAIT_S)
        return self._context.wrap_socket(plain, server_hostname="localhost")

    def client(self, kind: str, who: str) -> TokenClient:
        return TlsClient(self, kind, self.tokens[who] if who else "")

    def request(
        self, method: str, target: str, who: str = "", body: Any = None, **headers: str
    ) -> tuple[int, str]:
        """Status and text of one request to the admin port."""
        connection = http.client.HTTPSConnection(
            "localhost", self.server.ports["admin"], timeout=WAIT_S, context=self._context
        )
        sent = {"Content-Type": "application/json", **headers}
        if who:
            sent["Authorization"] = f"Bearer {self.tokens[who]}"
        try:
            connection.request(method, target, None if body is None else json.dumps(body), sent)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def say(self, data: bytes, kind: str = "admin", encrypted: bool = True) -> bytes:
        """Send bytes and read until the server ends the connection, or answers and waits."""
        address = ("127.0.0.1", self.server.ports[kind])
        with self.connect(kind) if encrypted else socket.create_connection(address, timeout=WAIT_S) as raw:
            received = b""
            try:
                raw.sendall(data)
                raw.shutdown(socket.SHUT_WR) if not encrypted else None
                while chunk := raw.recv(65_536):
                    received += chunk
                    if encrypted and b"\r\n\r\n" in received:
                        break
            except OSError:
                pass  # the server has ended it
            return received

    def audit_text(self) -> str:
        return "".join(path.read_text() for path in self.server.data_dir.glob("audit/*.jsonl"))

    def rejected_actions(self, who: str) -> set[str]:
        lines = map(json.loads, self.audit_text().splitlines())
        return {line["action"] for line in lines if (line["event"], line.get("who")) == ("rejected", who)}


class TlsClient(TokenClient):
    """A connection over TLS that logs in with a token, if there is one."""

    def __init__(self, secured: TlsServer, kind: str, token: str) -> None:
        self._idl, self._service = SERVICES[kind]
        self._socket = secured.connect(kind)
        self.login = self.log_in(token) if token else None


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    folder = tmp_path_factory.mktemp("secured")
    conf = folder / "conf"
    tokens = write_rights(conf, [VICTIM, MALLORY], tls=TLS)
    write_certificates(conf)
    groups = {name: {"topics": {name: {"start": "first"}}} for name in ("mine", "theirs")}
    topics = {"mine": {"queues": 1}, "theirs": {"queues": 1}}
    write_config(conf, topics={"topics": topics}, groups={"groups": groups})
    server = RealServer(folder, conf)
    try:
        yield TlsServer(server.start(), tokens)
    finally:
        server.end()


@pytest.fixture(autouse=True)
def honest_clients_are_served(secured: TlsServer) -> Iterator[None]:
    yield
    with secured.client("producer", "victim") as client:
        assert send(client, "theirs").code == 0
    assert secured.request("GET", "/ready")[0] == 200


def send(client: TokenClient, topic: str, **fields: Any) -> Any:
    message = P.Message(topic=topic, key="", tags="", body=SECRET.encode(), **fields)
    return client.call("sendSync", message=message, timeout=0)


def is_ended(client: TokenClient) -> bool:
    """Whether the server ends the connection before it answers two sends."""
    try:
        for _ in range(2):
            send(client, "mine")
    except (EOFError, OSError):
        return True
    return False


# --- without a login

GARBAGE = {
    "records of nothing": b"\x16\x03\x01\x00\x00" * 1_000,
    "a hello of random bytes": b"\x16\x03\x01\x02\x00" + os.urandom(512),
    "half a hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a record of 64 KiB": b"\x16\x03\x03\xff\xff" + bytes(70_000),
    "an alert first": b"\x15\x03\x03\x00\x02\x02\x28",
    "data first": b"\x17\x03\x03\x00\x20" + bytes(32),
    "SSL 2": b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + bytes(40),
    "HTTP": b"GET /topics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("kind", ["producer", "consumer", "admin"])
@pytest.mark.parametrize("case", GARBAGE)
def test_no_handshake_no_answer_but_the_reason(secured: TlsServer, kind: str, case: str) -> None:
    answer = secured.say(GARBAGE[case], kind, encrypted=False)
    assert SECRET.encode() not in answer
    assert len(answer) < 1_000
    if kind == "admin" and case == "HTTP":
        assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_plain_calls_are_told_that_tls_is_required(secured: TlsServer, kind: str) -> None:
    idl, service = SERVICES[kind]
    request = (P if kind == "producer" else C).AuthRequest(
        mechanism="token", credentials=secured.tokens["root"].encode()
    )
    answer = secured.say(encode_call(idl, service, "authenticate", request=request), kind, encrypted=False)
    assert b"this port requires TLS" in answer


CREDENTIALS = {
    "empty": b"", "a long one": b"ddmq_" + b"a" * 2_000_000, "zeros": bytes(106), "text": b"\x1b[31mroot\n",
    "another secret": b"ddmq_" + b"0" * 24 + b"_" + b"a" * 64,
}  # fmt: skip


@pytest.mark.parametrize("case", [*CREDENTIALS, "a part of a valid one", "a valid id"])
def test_a_wrong_token_ends_the_connection(secured: TlsServer, case: str) -> None:
    valid = secured.tokens["root"].encode()
    credentials = {"a part of a valid one": valid[:-1], "a valid id": valid[:30] + b"0" * 64}.get(
        case
    ) or CREDENTIALS.get(case, b"")
    with secured.client("producer", "") as client:
        request = P.AuthRequest(mechanism="token", credentials=credentials)
        answer = client.call("authenticate", request=request)
        assert answer.code == 13
        assert answer.msg == b"the token is not known, or it has expired or was revoked"
        assert is_ended(client)
    if b"\n" not in credentials and b"\0" not in credentials and len(credentials) < 10_000:
        bearer = credentials.decode()
        status, text = secured.request("GET", "/topics", Authorization=f"Bearer {bearer}")
        assert (status, bearer in text and bool(bearer)) == (401, False)


def test_a_login_that_fails_ends_the_identity_before_it(secured: TlsServer) -> None:
    with secured.client("producer", "mallory") as client:
        for _ in range(100):
            assert client.log_in(secured.tokens["mallory"]).code == 0
        assert send(client, "mine").code == 0
        assert client.log_in(secured.tokens["victim"]).code == 0
        assert is_rejected(send(client, "mine")), "the last login counts, alone"
        assert client.log_in("nonsense").code == 13
        assert is_ended(client)


@pytest.mark.parametrize("name", FORGED)
def test_headers_of_proxies_give_no_identity_and_no_address(secured: TlsServer, name: str) -> None:
    assert secured.request("GET", "/metrics", **{name: FORGED[name]})[0] == 401
    assert secured.request("GET", "/keys", "mallory", **{name: FORGED[name]})[0] == 403
    assert (
        secured.request("DELETE", "/topics/theirs?forwarded=1", "mallory", **{name: FORGED[name]})[0] == 403
    )


# --- an identity with few rights

MARK = {"forwardedBy": "127.0.0.1:1"}
IDENTITY = "01890000000070008000000000000001"


def test_the_marks_of_processes_are_rejected(secured: TlsServer) -> None:
    context = C.Context(groupId="mine", topic="mine", qid="none_none_0")
    end = P.EndTransactionRequest(
        transactionId=IDENTITY, producerGroup="mine", clientId="m", action=12, **MARK
    )
    with secured.client("producer", "mallory") as producer, secured.client("consumer", "mallory") as consumer:
        assert is_rejected(producer.call("endTransaction", request=end))
        assert is_rejected(producer.call("callEngine", data=b"x", timeout=0))
        result = C.ConsumeResult(context=context, successOffsets=[0], failOffsets=[], **MARK)
        assert is_rejected(consumer.call("submit", result=result))


def test_transactions_and_delays_of_others(secured: TlsServer) -> None:
    """Their ids are known; the group, or the topic, is stated as the own one."""
    message = P.Message(topic="theirs", key="", tags="", body=SECRET.encode())
    prepare = P.PrepareRequest(
        transactionId=IDENTITY, producerGroup="theirs", messages=[message], clientId="v"
    )
    add = P.DelayMessage(topic="theirs", tags="", body=SECRET.encode(), action=DelayAction.ADD, dmsgtype=5,
                         delayMs=10**7, clientId="v")  # fmt: skip
    with secured.client("producer", "victim") as victim, secured.client("producer", "mallory") as mallory:
        assert victim.call("sendPrepared", request=prepare).code == 0
        delayed = victim.call("sendDelaySync", delayMessage=add, timeout=0).uniqDelayMsgId.decode()
        end = P.EndTransactionRequest(transactionId=IDENTITY, producerGroup="mine", clientId="m", action=12)
        assert mallory.call("endTransaction", request=end).outcome not in (1, 2)
        polled = P.PollChecksRequest(producerGroup="mine", clientId="m", countMax=10, timeout=0)
        assert not mallory.call("pollTransactionChecks", request=polled).checks
        cancel = P.DelayMessage(topic="mine", tags="", action=DelayAction.CANCEL, uniqDelayMsgId=delayed,
                                clientId="m")  # fmt: skip
        assert mallory.call("sendDelaySync", delayMessage=cancel, timeout=0).outcome == 4
        cancel.topic = "theirs"
        assert is_rejected(mallory.call("sendDelaySync", delayMessage=cancel, timeout=0))
        for target in (f"/transactions/{IDENTITY}", f"/delay/messages/{delayed}", "/delay/messages"):
            status, text = secured.request("GET", target, "mallory")
            assert (status, SECRET in text, "theirs" in text) == (200, False, False), target
        for target, body in (
            (f"/transactions/{IDENTITY}", {"action": "commit"}),
            (f"/delay/messages/{delayed}", {"action": "cancel"}),
        ):
            assert secured.request("POST", target, "mallory", body)[0] in (400, 404), target
        assert json.loads(secured.request("GET", f"/transactions/{IDENTITY}", "victim")[1])["state"] == "open"
        assert victim.call("sendDelaySync", delayMessage=cancel, timeout=0).outcome == 2


def test_leases_and_requests_of_others(secured: TlsServer) -> None:
    with secured.client("consumer", "victim") as victim, secured.client("consumer", "mallory") as mallory:
        with secured.client("producer", "victim") as producer:
            assert send(producer, "theirs").code == 0
        pull = C.PullRequest(groupId="theirs", topic="theirs", clientId="v", maxLingerTime=5_000)
        pulled = until(lambda: _with_messages(victim.call("pull", request=pull)), "the message")
        (offsets, leases) = zip(*((each.offset, each.leaseId) for each in pulled.messages), strict=True)
        stolen = C.ConsumeResult(context=pulled.context, successOffsets=list(offsets), failOffsets=[],
                                 successLeases=list(leases))  # fmt: skip
        own = C.Context(groupId="mine", topic="mine", qid=pulled.context.qid)
        linked = C.ConsumeResult(context=own, successOffsets=[], failOffsets=[], nextResult=stolen)
        assert mallory.call("submit", result=linked) is True
        assert is_rejected(mallory.call("settle", request=C.SettleRequest(result=linked)))
        leave = C.SettleRequest(groupId="theirs", clientId="v", leave=True)
        assert is_rejected(mallory.call("settle", request=leave))
        message = C.ReplyMessage(topic="mine", key="", tags="", body=b"x")
        reply = C.ReplyRequest(context=pulled.context, offset=offsets[0], lease=leases[0], messages=[message])
        assert is_rejected(mallory.call("reply", request=reply))
        for topic in ("theirs", "%DLQ%theirs", "%RETRY%theirs", "%DELAY", "RMQ_SYS_TRANS_HALF_TOPIC"):
            pull = C.PullRequest(groupId="mine", topic=topic, clientId="m", start="first")
            assert is_rejected(mallory.call("pull", request=pull)), topic
        assert victim.call("settle", request=C.SettleRequest(result=stolen)).late in (None, [])


def _with_messages(pulled: Any) -> Any:
    return pulled if pulled.messages else None


def test_no_answer_of_the_admin_api_has_a_secret_or_a_body_of_others(secured: TlsServer) -> None:
    """Every GET without a name in its path, every form, by an identity that may read metrics."""
    key = (secured.server.folder / "conf" / "server.key").read_text().splitlines()[2]
    secrets = [SECRET, key, *secured.tokens.values(), *(token[30:] for token in secured.tokens.values())]
    with secured.client("producer", "victim") as client:
        message_id = send(client, "theirs", clientId="v").messageId.decode()
    targets = [route.path for route in ROUTES if route.method == "GET" and "{" not in route.path]
    targets.remove("/events")
    targets += [f"/messages/{message_id}", f"/messages/{message_id}/story", "/topics/theirs/messages",
                "/topics/%25DLQ%25theirs/messages", "/dlq/theirs/export", "/retries?group=theirs",
                "/delay/messages?text=card", "/keys?group=theirs&text=card", "/groups/theirs"]  # fmt: skip
    for target in targets:
        for form in ("", "form=2"):
            full = target + (("&" if "?" in target else "?") + form if form else "")
            _, text = secured.request("GET", full, "mallory")
            assert [secret for secret in secrets if secret in text] == [], full
    for target, body in (
        ("/topics/theirs/search", {"text": "card"}),
        ("/operations", {"kind": "dead_letters", "action": "purge", "filter": {"group": "theirs"}}),
        ("/dlq/theirs/resend", {"all": True, "dry_run": True}),
        ("/groups/theirs/offsets", {"topic": "theirs", "to": "first"}),
    ):
        assert secured.request("POST", target, "mallory", body)[0] == 403, target


def test_changes_and_operations_of_others(secured: TlsServer) -> None:
    changed = secured.request("POST", "/groups/theirs/topics/theirs", "victim", {"paused": True})
    undo = json.loads(changed[1])["undo"]
    body = {"kind": "delays", "action": "cancel", "filter": {"topic": "theirs"}}
    plan = json.loads(secured.request("POST", "/operations", "victim", body)[1])
    assert secured.request("POST", f"/changes/{undo}/undo", "mallory")[0] == 404
    start = {"token": plan["token"]}
    assert secured.request("POST", f"/operations/{plan['id']}/start", "mallory", start)[0] == 404
    for target in ("/changes", "/operations", f"/changes/{undo}", f"/operations/{plan['id']}"):
        assert "theirs" not in secured.request("GET", target, "mallory")[1]
    actions = {
        "POST /changes/{id}/undo",
        "POST /operations/{id}/start",
        "GET /changes/{id}",
        "GET /operations/{id}",
    }
    until(lambda: actions <= secured.rejected_actions("mallory"), "also what looks like nothing is recorded")
    assert secured.request("POST", f"/changes/{undo}/undo", "victim")[0] == 200


NAMES = ("a\nb", 'a","event":"change","who":"root', "\x1b[2J", "a\u2028b\u202e", "x" * 5_000, "a\0b")


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_forge_no_line_of_the_audit_log_or_the_log(secured: TlsServer, name: str) -> None:
    with secured.client("producer", "mallory") as client:
        assert send(client, name, clientId=name).code in (11, 13)
    target = "/topics/" + "".join(f"%{byte:02x}" for byte in name.encode())
    assert secured.request("DELETE", target, "mallory")[0] in (400, 403, 404, 414)
    until(lambda: "sendSync" in secured.rejected_actions("mallory"), "it is recorded")
    for line in secured.audit_text().splitlines():
        fields = json.loads(line)
        assert fields["event"] != "change" or fields["who"] in ("victim", "mallory"), line
        assert len(line) < 2_000
    for text in (secured.audit_text(), secured.server.log):
        assert not any(character in text for character in "\x1b\0\u2028\u202e")


# --- a page in a browser, and what a proxy may read otherwise

OWN = "localhost"


@pytest.mark.parametrize(
    "headers",
    [
        "Host: evil.example",
        f"Host: {OWN}\r\nOrigin: https://evil.example",
        f"Host: {OWN}\r\nSec-Fetch-Site: cross-site",
        f"Host: {OWN}\r\nX : y\r\nOrigin: https://evil.example",
        f"Host: {OWN}\r\nTransfer-Encoding: chunked",
        f"Host: {OWN}\r\nContent-Length: 5\r\nContent-Length: 6",
        f"Host: {OWN}\r\n" + "\r\n".join(f"X-{number}: y" for number in range(200)),
        f"Host: {OWN}\r\nX: " + "y" * 100_000,
    ],
    ids=range(8),
)
def test_no_request_of_a_page_or_behind_another_is_answered(secured: TlsServer, headers: str) -> None:
    """Also with the token, which a page does not have. The second request would be a smuggled one."""
    bearer = f"Authorization: Bearer {secured.tokens['victim']}"
    inner = f"GET /topics/theirs/messages HTTP/1.1\r\nHost: {OWN}\r\n{bearer}\r\n\r\n"
    data = f"GET /topics/theirs/messages HTTP/1.1\r\n{bearer}\r\n{headers}\r\n\r\n{inner}"
    answer = secured.say(data.encode())
    assert SECRET.encode() not in answer
    assert b"HTTP/1.1 200" not in answer


def test_silent_connections_of_an_address_keep_nobody_out(secured: TlsServer) -> None:
    silent = [secured.connect("admin") for _ in range(40)]
    address = ("127.0.0.1", secured.server.ports["admin"])
    silent += [socket.create_connection(address, timeout=WAIT_S) for _ in range(40)]  # type: ignore[misc]
    try:
        for each in silent[:20]:
            each.sendall(b"GET /topics HTTP/1.1\r\n")
        for _ in range(5):
            assert secured.request("GET", "/ready")[0] == 200
            assert secured.request("GET", "/topics", "victim")[0] == 200
    finally:
        for each in silent:
            each.close()


def test_frames_behind_a_handshake_need_a_login_too(secured: TlsServer) -> None:
    """The longest length, and a flood of logins, on connections that are encrypted."""
    answer = secured.say(pack(">I", 0x7FFFFFFF) + bytes(100), "producer")
    assert answer == b""
    with secured.client("producer", "") as client:
        assert is_rejected(send(client, "theirs"))


def test_a_certificate_of_another_authority_is_no_login(secured: TlsServer, tmp_path: Path) -> None:
    write_certificates(tmp_path)
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    context.load_cert_chain(tmp_path / "stranger.crt", tmp_path / "stranger.key")
    plain = socket.create_connection(("127.0.0.1", secured.server.ports["producer"]), timeout=WAIT_S)
    received = b"more"
    with suppress(OSError), context.wrap_socket(plain, server_hostname="localhost") as stranger:
        received = stranger.recv(1)  # with TLS 1.3, the client hears of it after its handshake
    assert received in (b"", b"more")
