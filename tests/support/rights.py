"""A server with rights on, and its callers: one identity with all rights, and for each right on each name
one with all others."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from struct import unpack
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import quote

from ddmq_client.idl import consumer, producer
from ddmq_common.security.files import TOKENS_FILE, write_tokens
from ddmq_common.security.rights import CLUSTER_RIGHTS, DESCRIBING, NAME_RIGHTS
from ddmq_common.security.tokens import RANDOM_BYTES, make_token
from ddmq_rpc.client_side import ReplyError, decode_reply, encode_call
from ddmq_rpc.codec import structs

WAIT_S = 30.0
P, C = structs(producer), structs(consumer)
SERVICES: dict[str, tuple[ModuleType, str]] = {
    "producer": (producer, "ProducerService"),
    "consumer": (consumer, "ConsumerService"),
}
NAMES = ("mine", "fresh", "team", "crew", "band", "pay")
Need = tuple[str, str]  # right, name


def all_grants() -> frozenset[Need]:
    """Every right on every name that the tests use."""
    return frozenset((right, name) for right in NAME_RIGHTS for name in NAMES) | {
        (right, "") for right in CLUSTER_RIGHTS
    }


class Who(NamedTuple):
    """An identity and its rights."""

    name: str
    grants: frozenset[Need]

    def has(self, need: Need) -> bool:
        right, name = need
        includes = {right, *(DESCRIBING if right == "describe" else ())}
        return any((each, name) in self.grants for each in includes)

    def has_all(self, needs: Iterable[Need]) -> bool:
        return all(map(self.has, needs))


def everybody() -> list[Who]:
    """One with all rights, one with none, and one for each pair without which something must be rejected."""
    grants = all_grants()
    lists = [Who("everything", grants), Who("nothing", frozenset())]
    for right, name in sorted(grants):
        lacking = {(right, name)}
        if right == "describe":
            lacking |= {(other, name) for other in DESCRIBING}
        lists.append(Who(f"no-{right}-{name or 'all'}", grants - lacking))
    return lists


def write_rights(folder: Path, people: Iterable[Who], **sections: Any) -> dict[str, str]:
    """Write security.yaml and the table of tokens into a folder; return the token of each identity."""
    identities: dict[str, Any] = {"root": {"kind": "admin"}, "server": {"kind": "node"}}
    for who in people:
        identities[who.name] = {"allow": [f"{right} {name}".rstrip() for right, name in sorted(who.grants)]}
    folder.mkdir(parents=True, exist_ok=True)
    made = {name: make_token(os.urandom(RANDOM_BYTES), name, "test", 0, 0) for name in identities}
    write_tokens(folder / TOKENS_FILE, {each.id: each.entry for each in made.values()})
    node = folder / "node.token"
    node.touch(0o600)
    node.write_text(made["server"].text)
    tree = {"identities": identities, "node_token": "node.token", **sections}
    (folder / "security.yaml").write_text(json.dumps(tree))
    return {name: each.text for name, each in made.items()}


class TokenClient:
    """A connection to a Thrift port that logs in with a token, if there is one."""

    def __init__(self, kind: str, port: int, token: str = "") -> None:
        self._idl, self._service = SERVICES[kind]
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self.login = self.log_in(token) if token else None

    def __enter__(self) -> TokenClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def log_in(self, token: str) -> Any:
        request = structs(self._idl).AuthRequest(mechanism="token", credentials=token.encode())
        return self.call("authenticate", request=request)

    def send(self, method: str, **arguments: Any) -> None:
        self._socket.sendall(encode_call(self._idl, self._service, method, **arguments))

    def read(self) -> Any:
        """The result struct of the next answer's value, or of its exception."""
        head = self._read(4)
        try:
            result = decode_reply(self._idl, self._service, head + self._read(unpack(">i", head)[0])).result
        except ReplyError as error:
            return error
        return result.success if getattr(result, "error", None) is None else result.error

    def call(self, method: str, **arguments: Any) -> Any:
        self.send(method, **arguments)
        return self.read()

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self._socket.recv(count - len(data))
            if not chunk:
                raise EOFError("the connection was closed")
            data += chunk
        return data


def is_rejected(answer: Any) -> bool:
    """Whether an answer of a Thrift method says that a right is missing."""
    if isinstance(answer, ReplyError):
        return "lacks the right" in answer.text
    code = getattr(answer, "code", None)
    text = getattr(answer, "msg", None) or getattr(answer, "message", None) or getattr(answer, "error", None)
    return code == 13 and b"lacks the right" in (text or b"")


class AdminClient:
    """Requests to an admin port with a token. `host`: the client's address, which has its own share of the
    server's processor time."""

    def __init__(self, port: int, token: str = "", host: str = "127.0.0.1") -> None:
        self._port = port
        self._token = token
        self._host = host

    def request(
        self, method: str, *path: str, body: Mapping[str, Any] | None = None, query: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:  # fmt: skip
        """Status and JSON, or text, of one request."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self._port, timeout=WAIT_S, source_address=(self._host, 0)
        )
        sent = {"Content-Type": "application/json", **(headers or {})}
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"
        try:
            target = (
                "/" + "/".join(quote(segment, safe="") for segment in path) + (f"?{query}" if query else "")
            )
            connection.request(method, target, None if body is None else json.dumps(body), sent)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        is_json = response.headers.get("Content-Type", "").startswith("application/json")
        return response.status, json.loads(text) if is_json else text
