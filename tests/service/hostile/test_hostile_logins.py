"""Logins under attack: expired tokens, tokens in the wrong place, names that others state, other users of the
machine at the Unix socket, and what an identity with few rights reads in snapshots and events.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddmq_client.idl.codes import DelayAction
from ddmq_common.security.files import TOKENS_FILE, read_tokens, write_tokens
from ddmq_common.security.tokens import RANDOM_BYTES, make_token
from tests.scenarios.real_server import RealServer, write_config
from tests.support.rights import AdminClient, C, P, TokenClient, Who, is_rejected, write_rights
from tests.support.waits import until

SECRET, KEY = "card 4111", "order-of-alice"
WATCHER = Who("watcher", frozenset({("metrics", "")}))
OTHER_RIGHTS = ("send", "consume", "create", "operate", "manage", "browse")
VICTIM = Who("victim", frozenset((right, "theirs") for right in OTHER_RIGHTS))
MALLORY = Who("mallory", frozenset({("send", "mine"), ("manage", "mine"), ("consume", "mine"), ("push", "")}))
USER, STRANGER = 65_533, 65_534  # user ids: mallory's, and one without a rule


class LoginServer:
    """A server without TLS on loopback, with a Unix socket in a folder that every user may enter."""

    def __init__(self, server: RealServer, tokens: dict[str, str], socket_path: Path) -> None:
        self.server, self.tokens, self.socket_path = server, tokens, socket_path

    def client(self, kind: str, who: str) -> TokenClient:
        return TokenClient(kind, self.server.ports[kind], self.tokens[who])

    def admin(self, who: str) -> AdminClient:
        return AdminClient(self.server.ports["admin"], self.tokens.get(who, who))

    def add_token(self, who: str, expires_ms: int) -> str:
        assert self.server.config is not None
        path = self.server.config / TOKENS_FILE
        token = make_token(os.urandom(RANDOM_BYTES), who, "short", 0, expires_ms)
        write_tokens(path, {**read_tokens(path), token.id: token.entry})
        return token.text

    def read_text(self) -> str:
        """What the server has written: its log, and the audit log."""
        files = self.server.data_dir.glob("audit/*.jsonl")
        return self.server.log + "".join(path.read_text() for path in files)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoginServer]:
    folder = tmp_path_factory.mktemp("logins")
    public = Path(tempfile.mkdtemp(prefix="ddmq-"))  # other users cannot enter pytest's folders
    public.chmod(0o711)
    path = public / "admin.sock"
    tokens = write_rights(folder / "conf", [WATCHER, VICTIM, MALLORY], users={str(USER): "mallory"})
    settings = {"start": "first", "order_key": "KEY", "retry_intervals_ms": [600_000]}
    groups = {"mine": {"topics": {"mine": {}}}, "theirs": {"topics": {"theirs": settings}}}
    write_config(
        folder / "conf",
        topics={"topics": {name: {"queues": 1} for name in ("mine", "theirs")}},
        groups={"groups": groups},
        ddmq={"admin_socket": str(path), "admin_socket_mode": "0660"},
    )
    server = RealServer(folder, folder / "conf")
    try:
        yield LoginServer(server.start(), tokens, path)
    finally:
        server.end()
        shutil.rmtree(public)


# --- tokens that expire


def test_an_expired_token_is_rejected_with_the_words_of_an_unknown_one(secured: LoginServer) -> None:
    expired = secured.add_token("victim", 1)
    fresh = secured.add_token("victim", 0)
    until(lambda: log_in(secured, fresh) == 0, "the server has read the table")
    with TokenClient("consumer", secured.server.ports["consumer"], expired) as client:
        assert client.login.code == 13
        assert client.login.msg == b"the token is not known, or it has expired or was revoked"
        with pytest.raises(EOFError):
            client.read()
    assert secured.admin(expired).request("GET", "topics")[0] == 401


def log_in(secured: LoginServer, token: str) -> int:
    with TokenClient("consumer", secured.server.ports["consumer"], token) as client:
        return int(client.login.code)


def test_a_token_that_expires_ends_a_waiting_pull(secured: LoginServer) -> None:
    _, pulling = open_before_expiry(secured, "victim", begin_pull)
    with pulling, pytest.raises(EOFError):
        pulling.read()


def test_a_token_that_expires_ends_a_stream_of_events(secured: LoginServer) -> None:
    token, text = open_before_expiry(secured, "watcher", read_events)
    assert b"rights have changed" in text
    assert secured.admin(token).request("GET", "events")[0] == 401


def open_before_expiry(
    secured: LoginServer, who: str, begin: Callable[[LoginServer, str], Any]
) -> tuple[str, Any]:
    """A token that expires soon, and what `begin` returned with it; None: it was not accepted. A busy machine
    may need a longer life for that."""
    for lifetime_s in (3, 12, 50):
        expires_ms = int(time.time() + lifetime_s) * 1_000
        token = secured.add_token(who, expires_ms)
        while time.time() * 1_000 < expires_ms:
            begun = begin(secured, token)
            if begun is not None:
                return token, begun
    raise AssertionError("no token was accepted in time")


def begin_pull(secured: LoginServer, token: str) -> TokenClient | None:
    client = TokenClient("consumer", secured.server.ports["consumer"], token)
    if client.login.code:
        client.__exit__()
        return None
    pull = C.PullRequest(groupId="theirs", topic="theirs", clientId="v", maxLingerTime=60_000)
    client.send("pull", request=pull)
    return client


def read_events(secured: LoginServer, token: str) -> bytes | None:
    connection = http.client.HTTPConnection("127.0.0.1", secured.server.ports["admin"], timeout=120)
    connection.request("GET", "/events", headers={"Authorization": f"Bearer {token}"})
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return text if response.status == 200 and b"event: snapshot" in text else None


# --- tokens in the wrong place


def test_a_token_in_a_url_or_another_header_is_no_login_and_is_not_logged(secured: LoginServer) -> None:
    token, nobody = secured.tokens["root"], secured.admin("")
    basic = base64.b64encode(f"root:{token}".encode()).decode()
    for name in ("token", "access_token", "authorization", "api_key"):
        assert nobody.request("GET", "keys", query=f"{name}={token}")[0] in (400, 401)
        assert nobody.request("GET", "metrics", query=f"{name}={token}")[0] in (400, 401)
    for headers in (
        {"X-Token": token},
        {"X-Api-Key": token},
        {"Cookie": f"token={token}; Authorization=Bearer {token}"},
        {"Proxy-Authorization": f"Bearer {token}"},
        {"Authorization": f"Basic {basic}"},
        {"Authorization": token},
    ):
        assert nobody.request("GET", "metrics", headers=headers)[0] == 401, headers
    assert nobody.request("GET", "metrics", headers={"Authorization": f"Bearer {token}"})[0] == 200
    foreign = {"Host": "evil.example", "Authorization": f"Bearer {token}"}
    assert nobody.request("GET", "metrics", query=f"token={token}", headers=foreign)[0] == 403
    until(lambda: "evil.example" in secured.server.log, "the rejection is logged")
    assert token[30:] not in secured.read_text()


# --- addresses that a server is made to contact


def test_no_request_makes_a_server_contact_an_address(secured: LoginServer) -> None:
    """A push target, a target of a proxy request, and the marks of processes; the address listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        mallory = secured.admin("mallory")
        number = int.from_bytes(socket.inet_aton("127.0.0.1"), "big")
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", str(number), "0", "127.1"):
            target = {"http": {"urls": [f"http://{host}:{port}/admin"]}}
            settings = {"actions": ["FormParams", "AsyncHttp"], "push": target}
            status, answer = mallory.request("POST", "groups", "mine", "topics", "mine", body=settings)
            assert status == 400 or "push_targets" in str(answer["notes"]), answer
        with secured.client("producer", "mallory") as producer:
            message = P.Message(topic="mine", key="", tags="", body=b"x")
            assert producer.call("sendSync", message=message, timeout=0).code == 0
        raw = f"GET http://127.0.0.1:{port}/topics HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
        connect = f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for text in (raw, connect):
            with socket.create_connection(("127.0.0.1", secured.server.ports["admin"]), 30) as plain:
                plain.sendall(text.encode())
                assert plain.recv(100).split(b" ")[1][:1] == b"4", text
        query = f"address=127.0.0.1:{port}&admin=127.0.0.1:{port}&server=127.0.0.1:{port}&forwarded=1"
        for path in ("processes", "stats", "snapshot"):
            assert secured.admin("watcher").request("GET", path, query=query)[0] in (400, 403)
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()


# --- names that others state


def test_nobody_but_a_node_acts_for_others_at_any_port(secured: LoginServer) -> None:
    stated = {"X-Ddmq-Identity": "root"}
    for who in ("", "watcher", "mallory"):
        client, status = secured.admin(who), 403 if who else 401
        assert client.request("GET", "keys", headers=stated)[0] == status
        assert client.request("GET", "auth", "audit", headers=stated)[0] == status
    local = {**stated, "X-Ddmq-Identity": "@local"}
    assert secured.admin("mallory").request("GET", "keys", headers=local)[0] == 403
    assert secured.admin("server").request("GET", "keys", headers={"X-Ddmq-Identity": "mallory"})[0] == 403
    assert secured.admin("server").request("GET", "keys", headers=stated)[0] == 200, "a node does"
    mark = {"forwardedBy": f"127.0.0.1:{secured.server.ports['producer']}"}
    context = C.Context(groupId="theirs", topic="theirs", qid="none_none_0")
    result = C.ConsumeResult(context=context, successOffsets=[0], failOffsets=[], **mark)
    reply = C.ReplyRequest(context=context, offset=0, lease=1, messages=[], **mark)
    poll = P.PollChecksRequest(producerGroup="theirs", clientId="m", countMax=1, timeout=0, **mark)
    with secured.client("consumer", "mallory") as consumer, secured.client("producer", "mallory") as producer:
        assert is_rejected(consumer.call("submit", result=result))
        assert is_rejected(consumer.call("reply", request=reply))
        assert is_rejected(producer.call("pollTransactionChecks", request=poll))
        assert is_rejected(producer.call("callEngine", data=b"x", timeout=0))


# --- other users of the machine


def request_as(uid: int, path: Path, target: str, *headers: str) -> str:
    """The answer to a request that another user of this machine makes at a Unix socket, or the error."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            answer = exchange(path, target, headers)
        except BaseException as error:
            answer = repr(error).encode()
        os.write(writing, answer[:60_000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(child, 0)
    return text


def exchange(path: Path, target: str, headers: tuple[str, ...]) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(path))
        lines = [f"GET {target} HTTP/1.1", "Host: localhost", "Connection: close", *headers, "", ""]
        client.sendall("\r\n".join(lines).encode())
        answer = b""
        while data := client.recv(4096):
            answer += data
        return answer


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")
def test_another_user_at_the_unix_socket_has_its_own_rights_alone(secured: LoginServer) -> None:
    path = secured.socket_path
    assert "PermissionError" in request_as(USER, path, "/keys")
    path.chmod(0o666)  # as if somebody opened it for all
    assert request_as(0, path, "/keys").startswith("HTTP/1.1 200")
    own = request_as(USER, path, "/auth")
    assert '"mallory"' in own
    assert "@local" not in own
    for uid, status in ((USER, "403"), (STRANGER, "401")):
        for header in ("X-Ddmq-Identity: root", "X-Ddmq-Identity: @local", "X-Forwarded-User: root"):
            assert request_as(uid, path, "/keys", header).startswith(f"HTTP/1.1 {status}"), (uid, header)
        assert request_as(uid, path, "/keys?forwarded=1").startswith("HTTP/1.1 4")
        assert SECRET not in request_as(uid, path, "/topics/theirs/messages")
    bearer = f"Authorization: Bearer {secured.tokens['victim']}"
    assert request_as(STRANGER, path, "/topics/theirs", bearer).startswith("HTTP/1.1 200"), "a token counts"


# --- what an identity that may read metrics alone reads


def test_snapshots_events_and_findings_have_names_and_no_contents(secured: LoginServer) -> None:
    """Names of topics and groups are in metrics, too; keys, bodies, clients' addresses and ids are not."""
    message = P.Message(topic="theirs", key=KEY, tags="", body=SECRET.encode(), clientId="till-7")
    delay = P.DelayMessage(topic="theirs", tags="", body=SECRET.encode(), action=DelayAction.ADD, dmsgtype=5,
                           delayMs=10**7, clientId="till-7")  # fmt: skip
    with secured.client("producer", "victim") as producer, secured.client("consumer", "victim") as consumer:
        assert producer.call("sendSync", message=message, timeout=0).code == 0
        delayed = producer.call("sendDelaySync", delayMessage=delay, timeout=0).uniqDelayMsgId.decode()
        pull = C.PullRequest(groupId="theirs", topic="theirs", clientId="till-7", maxLingerTime=5_000)
        pulled = until(lambda: with_messages(consumer.call("pull", request=pull)), "the message")
        failed = C.ConsumeResult(
            context=pulled.context, successOffsets=[], failOffsets=[each.offset for each in pulled.messages]
        )
        assert consumer.call("submit", result=failed) is True
        keys = secured.admin("victim").request("GET", "groups", "theirs", "keys")[1]
        assert KEY in json.dumps(keys), "the key waits for its retry"
        texts = {name: secured.admin("watcher").request("GET", name)[1] for name in WATCHED}
        texts["events"] = read_first_event(secured)
    for name, text in texts.items():
        for secret in (SECRET, KEY, delayed, "till-7"):
            assert secret not in str(text), (name, secret)
    assert "theirs" in str(texts["metrics"])
    for name in ("topics", "groups", "lag", "dlq", "clients", "changes", "operations"):
        assert "theirs" not in str(secured.admin("watcher").request("GET", name)[1]), name


WATCHED = ("metrics", "stats", "snapshot", "findings", "history", "processes", "config", "log", "usage")


def with_messages(pulled: Any) -> Any:
    return pulled if pulled.messages else None


def read_first_event(secured: LoginServer) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", secured.server.ports["admin"], timeout=30)
    connection.request("GET", "/events", headers={"Authorization": f"Bearer {secured.tokens['watcher']}"})
    response = connection.getresponse()
    text = ""
    while "event: snapshot" not in text or not text.endswith("\n\n"):
        text += response.readline().decode()
    connection.close()
    return text
