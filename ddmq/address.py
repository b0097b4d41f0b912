"""HOST:PORT on the command line and in configuration."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import Any, NamedTuple

import click

PRODUCER_PORT = 9613
CONSUMER_PORT = 9713
ADMIN_PORT = 9813
LOOPBACK = "127.0.0.1"
UNIX = "unix:"  # before the path of a Unix socket, as an address
COMPONENTS = ("producer", "consumer", "admin")


class HostPort(NamedTuple):
    """The address at which a component listens or is found. IPv6 hosts stand in brackets in text."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UnixPath(HostPort):
    """The path of a Unix socket, as `host`."""

    def __str__(self) -> str:
        return UNIX + self.host


def parse(text: str) -> HostPort:
    """Parse `HOST:PORT` or `[V6]:PORT`. Port 0 means any free port. Raises ValueError, whose text shows the
    allowed form."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT (for example 127.0.0.1:9613; ports 0 to 65535)")
    return HostPort(host, int(port))


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to the host; names are resolved."""
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return True  # nothing can listen there, which the attempt will say
    return all(ipaddress.ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in addresses)


def ready_line(addresses: dict[str, HostPort], data_dir: Path) -> str:
    """Return the line that announces the address of every component, in the order of COMPONENTS, and the data
    directory."""
    where = " ".join(
        f"{component}={addresses[component]}" for component in sorted(addresses, key=COMPONENTS.index)
    )
    return f"ready {where} data-dir={data_dir}"


def read_ready(line: str) -> dict[str, HostPort]:
    """Return the address of each component from a `ready_line`; nothing from any other line."""
    word, *pairs = line.partition(" data-dir=")[0].split() or [""]
    return {
        component: parse(where)
        for component, _, where in (pair.partition("=") for pair in pairs)
        if word == "ready"
    }


class AddressType(click.ParamType[HostPort]):
    """The click type of an address."""

    name = "HOST:PORT"

    def convert(self, value: Any, param: Any, ctx: Any) -> HostPort:
        if isinstance(value, HostPort):
            return value
        try:
            return parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class AdminAddressType(AddressType):
    """The click type of the address of an admin API: also the path of its Unix socket."""

    name = "HOST:PORT|unix:PATH"

    def convert(self, value: Any, param: Any, ctx: Any) -> HostPort:
        if not isinstance(value, HostPort) and value.startswith(UNIX):
            return UnixPath(value.removeprefix(UNIX), 0)
        return super().convert(value, param, ctx)


ADDRESS = AddressType()
ADMIN_ADDRESS = AdminAddressType()
PRODUCER = HostPort(LOOPBACK, PRODUCER_PORT)
CONSUMER = HostPort(LOOPBACK, CONSUMER_PORT)
ADMIN = HostPort(LOOPBACK, ADMIN_PORT)
