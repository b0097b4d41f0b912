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

from ddmq.address import LOOPBACK, PARTS, HostPort
from ddmq.server.config import Configuration
from ddmq_common.errors import ConfigError


class PortFault(NamedTuple):
    """The reason why `part` cannot listen on its address. `source`: the place of the configuration that names
    the address, if it is neither a flag nor the default."""

    part: str
    address: HostPort
    reason: str
    source: str = ""


def check_ports(config: Configuration, parts: Iterable[str]) -> None:
    """Raise ConfigError if this process cannot listen on an address of `parts`; its text names all such
    addresses.

    A port may still be taken between this check and the start of the part, which then fails with the same
    text.
    """
    addresses = {part: config.serve.address(part) for part in PARTS if part in set(parts)}
    faults = []
    for part, address in addresses.items():
        reason = _describe_clash(part, address, addresses) or _try_to_bind(address)
        if reason:
            faults.append(PortFault(part, address, reason, find_address_source(config, part)))
    if faults:
        raise cannot_listen(faults)


def find_address_source(config: Configuration, part: str) -> str:
    """Return where the configuration sets the address of `part`; "" for a flag and for the default."""
    return "" if part in config.flags else config.sources.get(f"ddmq.{part}", "")


def cannot_listen(faults: Sequence[PortFault]) -> ConfigError:
    """Return the error for ports that could not be opened; its text says what to do."""
    by_reason: dict[str, list[str]] = {}
    for fault in faults:
        source = f" ({fault.source})" if fault.source else ""
        by_reason.setdefault(fault.reason, []).append(f"{fault.address} for --{fault.part}{source}")
    places = "; ".join(f"{', '.join(addresses)}: {reason}" for reason, addresses in by_reason.items())
    in_use = os.strerror(errno.EADDRINUSE) in by_reason
    help_text = "a server may be running there (`ddmq stats` asks it); " if in_use else ""
    ports = "a free port of an own address" if len(faults) == 1 else "free ports of an own address"
    flags = " ".join(f"--{fault.part} {LOOPBACK}:0" for fault in faults)
    keys = ", ".join(fault.part for fault in faults)
    return ConfigError(
        f"cannot listen on {places}; {help_text}choose {ports}, for example {flags} for any "
        f"(in ddmq.yaml: {keys})"
    )


def describe_error(error: BaseException) -> str:
    """Return the reason of a failed bind in words."""
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number and number > 0 else str(error)


def _describe_clash(part: str, address: HostPort, addresses: Mapping[str, HostPort]) -> str:
    """Describe that a part before this one has the same address; "" if none has."""
    for other, used in addresses.items():
        if other == part:
            break
        if used == address and address.port:
            return f"--{other} has the same address"
    return ""


def _try_to_bind(address: HostPort) -> str:
    """Return why this process cannot listen on the address; "" if it can. It binds without listening, so that
    no client connects meanwhile."""
    try:
        family, _, _, _, place = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(place)
    except OSError as error:
        return describe_error(error)
    return ""
