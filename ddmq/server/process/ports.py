"""The ports of a server process: all of them are checked before anything is opened.

A person who starts a server beside another one learns at once which of its ports are taken, and by which
flag or key each is changed.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ddmq.address import COMPONENTS, LOOPBACK, HostPort
from ddmq.server.config import Configuration
from ddmq_common.errors import ConfigError


class UnusablePort(NamedTuple):
    """The reason why `component` cannot listen on its address. `source`: where the configuration sets
    the address, if it is neither a flag nor the default."""

    component: str
    address: HostPort
    reason: str
    source: str = ""


def check_ports(config: Configuration, components: Iterable[str]) -> None:
    """Raise ConfigError if this process cannot listen on an address of `components`; its text names all such
    addresses.

    A port may still be taken between this check and the start of the component, which then fails with the
    same text.
    """
    addresses = {
        component: config.serve.listen_address(component)
        for component in COMPONENTS
        if component in set(components)
    }
    unusable = []
    for component, address in addresses.items():
        reason = _describe_clash(component, address, addresses) or _try_to_bind(address)
        if reason:
            unusable.append(UnusablePort(component, address, reason, find_address_source(config, component)))
    if unusable:
        raise cannot_listen(unusable)


def find_address_source(config: Configuration, component: str) -> str:
    """Return where the configuration sets the address of `component`; "" for a flag and for the default."""
    return "" if component in config.flags else config.sources.get(f"ddmq.{component}", "")


def cannot_listen(unusable: Sequence[UnusablePort]) -> ConfigError:
    """Return the error for ports that could not be opened; its text says what to do."""
    by_reason: dict[str, list[str]] = {}
    for port in unusable:
        source = f" ({port.source})" if port.source else ""
        by_reason.setdefault(port.reason, []).append(f"{port.address} for --{port.component}{source}")
    reasons = "; ".join(f"{', '.join(addresses)}: {reason}" for reason, addresses in by_reason.items())
    in_use = os.strerror(errno.EADDRINUSE) in by_reason
    help_text = "a server may be running there (`ddmq stats` asks it); " if in_use else ""
    ports = "a free port of an own address" if len(unusable) == 1 else "free ports of an own address"
    flags = " ".join(f"--{port.component} {LOOPBACK}:0" for port in unusable)
    keys = ", ".join(port.component for port in unusable)
    return ConfigError(
        f"cannot listen on {reasons}; {help_text}choose {ports}, for example {flags} for any "
        f"(in ddmq.yaml: {keys})"
    )


def describe_error(error: BaseException) -> str:
    """Return the reason of a failed bind in words."""
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number and number > 0 else str(error)


def _describe_clash(component: str, address: HostPort, addresses: Mapping[str, HostPort]) -> str:
    """Describe that a component before this one has the same address; "" if none has."""
    for other, used in addresses.items():
        if other == component:
            break
        if used == address and address.port:
            return f"--{other} has the same address"
    return ""


def _try_to_bind(address: HostPort) -> str:
    """Return why this process cannot listen on the address; "" if it can. It binds without listening, so that
    no client connects meanwhile."""
    try:
        family, _, _, _, socket_address = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(socket_address)
    except OSError as error:
        return describe_error(error)
    return ""
