"""The admin HTTP API as the command line uses it: one request, JSON in and out, clear errors."""

from __future__ import annotations

import http.client
import os
import ssl
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import quote, urlencode

import click
import msgspec

from ddmq.address import ADMIN, ADMIN_ADDRESS, HostPort, UnixPath
from ddmq.cli.options import combine_options
from ddmq.cli.output import json_option, reason
from ddmq_client.core.nodes import ProxyAddress, SecureAddress, UnixAddress
from ddmq_client.errors import OptionError
from ddmq_client.net.admin.connection import connect_unix
from ddmq_client.security.login import check_channel, read_environment_token
from ddmq_client.security.tls import describe_error, secure_addresses, secure_socket

TIMEOUT_S = 15.0
PROBE_TIMEOUT_S = 1.0
ITEMS_MAX = 1_000  # of a page of a list


class UnknownResourceError(click.ClickException):
    """The error for an answer 404: the server has no topic, group or message of that name. `answer`: the
    complete answer."""

    def __init__(self, message: str, answer: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.answer = answer


def admin_address() -> HostPort:
    """Return the admin address for commands without --admin."""
    return ADMIN_ADDRESS.convert(os.environ.get("DDMQ_ADMIN", str(ADMIN)), None, None)


def read_token() -> str:
    """Return the token in the file that DDMQ_TOKEN_FILE names, or in DDMQ_TOKEN; "" without either. Raises
    click.ClickException."""
    try:
        return read_environment_token(os.environ)
    except OptionError as error:
        raise click.ClickException(str(error)) from error


def open_connection(address: HostPort, timeout_s: float) -> http.client.HTTPConnection:
    """Connect to a Unix socket, or to an admin port, with TLS if the environment says so (DDMQ_CA). Raises
    OSError."""
    if isinstance(address, UnixPath):
        connection = http.client.HTTPConnection("localhost", timeout=timeout_s)
        connection.sock = connect_unix(address.host, timeout_s)
        return connection
    connection = http.client.HTTPConnection(*address, timeout=timeout_s)
    connection.connect()
    try:
        connection.sock = secure_socket(_secure_address(address), connection.sock)
    except BaseException:
        connection.close()
        raise
    return connection


def _secure_address(address: HostPort) -> ProxyAddress:
    if isinstance(address, UnixPath):
        return UnixAddress(*address)
    return secure_addresses((ProxyAddress(*address),), None)[0]


class AdminClient:
    """Calls one server's admin API. Raises click.ClickException with what the server said."""

    def __init__(self, address: HostPort, timeout_s: float = TIMEOUT_S) -> None:
        self.address = address
        self._timeout_s = timeout_s

    def get(self, *path: str, **query: Any) -> Any:
        """Return the JSON answer of GET /path/segments?query; None values are left out."""
        return self._call("GET", path, query, None)

    def list_items(self, *path: str, **query: Any) -> list[dict[str, Any]]:
        """Return all items of GET /path/segments?query in form 2, page by page; absent values are absent.

        A server of the release before this one ignores `form`, and answers the complete list.
        """
        items: list[dict[str, Any]] = []
        while True:
            answer = self.get(*path, **query, form=2)
            if isinstance(answer, list):
                return answer
            items += answer["items"]
            if "next" not in answer:
                return items
            query |= {"after": answer["next"], "count": ITEMS_MAX}

    def get_bytes(self, *path: str, **query: Any) -> bytes:
        """Return the body of the answer of GET /path/segments?query, which is not one JSON document."""
        status, payload = self._send_request("GET", _build_target(path, query), None)
        if status >= 400:
            self._raise_error(status, payload)
        return payload

    def post(self, *path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send `body` by POST, and return the JSON answer."""
        return self._call("POST", path, {}, body or {})

    def delete(self, *path: str, **query: Any) -> Any:
        """Send a DELETE request, and return the JSON answer."""
        return self._call("DELETE", path, query, None)

    def _call(
        self, method: str, path: tuple[str, ...], query: Mapping[str, Any], body: Mapping[str, Any] | None
    ) -> Any:
        status, payload = self._send_request(method, _build_target(path, query), body)
        if status >= 400:
            self._raise_error(status, payload)
        return self._decode(payload, status)

    def _raise_error(self, status: int, payload: bytes) -> NoReturn:
        answer = self._decode(payload, status)
        if not isinstance(answer, dict):
            raise self._foreign_port_error(f"status {status}, {payload[:40]!r}")
        text = str(answer.get("error", f"HTTP status {status}"))
        raise UnknownResourceError(text, answer) if status == 404 else click.ClickException(text)

    def _send_request(self, method: str, target: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        connection: http.client.HTTPConnection | None = None
        try:
            connection = open_connection(self.address, self._timeout_s)
            payload = None if body is None else msgspec.json.encode(body)
            headers = {"Content-Type": "application/json"}
            if token := read_token():
                check_channel(connection.sock)
                headers["Authorization"] = f"Bearer {token}"
            connection.request(method, target, payload, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as error:
            raise self._foreign_port_error(reason(error)) from error
        except OSError as error:
            address = _secure_address(self.address)
            why = describe_error(error, address) if isinstance(error, ssl.SSLError) else reason(error)
            if isinstance(address, SecureAddress):
                raise click.ClickException(f"no server answers with TLS at {self.address}: {why}") from error
            raise click.ClickException(
                f"no server answers at {self.address} ({why}); "
                "start one with `ddmq serve --data-dir DIR`, or name another with --admin HOST:PORT"
            ) from error
        finally:
            if connection is not None:
                connection.close()

    def _decode(self, payload: bytes, status: int) -> Any:
        try:
            return msgspec.json.decode(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._foreign_port_error(f"status {status}, {payload[:40]!r}") from error

    def _foreign_port_error(self, why: str) -> click.ClickException:
        return click.ClickException(
            f"{self.address} is not a ddmq admin port ({why}); the `ready` line of `ddmq serve` names it"
        )


def _build_target(path: tuple[str, ...], query: Mapping[str, Any]) -> str:
    target = "/" + "/".join(quote(segment, safe="") for segment in path)
    parameters = {key: value for key, value in query.items() if value is not None}
    return target + ("?" + urlencode(parameters) if parameters else "")


def find_admin_port_hint(address: HostPort, option: str, proxy: str) -> str:
    """Return a hint if an admin port answers at the address that `option` names for a proxy; "" if not."""
    try:
        health = AdminClient(address, timeout_s=PROBE_TIMEOUT_S).get("health")
    except click.ClickException:
        return ""
    if not isinstance(health, dict) or "alive" not in health:
        return ""
    return (
        f"{address} is an admin port; {option} takes the {proxy} port, which `ddmq serve` prints when ready"
    )


class AdminType(click.ParamType[AdminClient]):
    """The click type of --admin: a client of that server."""

    name = ADMIN_ADDRESS.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> AdminClient:
        return (
            value if isinstance(value, AdminClient) else AdminClient(ADMIN_ADDRESS.convert(value, param, ctx))
        )


admin_option = click.option(
    "--admin", type=AdminType(), default=str(ADMIN), show_default=True, envvar="DDMQ_ADMIN",
    help="Admin address of the server (or set DDMQ_ADMIN).",
)  # fmt: skip
admin_options = combine_options(admin_option, json_option)
