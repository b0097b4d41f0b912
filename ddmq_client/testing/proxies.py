"""Proxies in this process: an address that leads to an object instead of a socket. The test kit enters them.

`connect_in_process` and `connect_protocol` are asked before each new connection; without an entry for the
address they answer None, and a socket is opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

P = TypeVar("P", bound=asyncio.Protocol)


class InProcessProxy(Protocol):
    """A proxy that answers in this process."""

    def open_socket(self) -> Any:
        """Return an object with the methods of a connected socket that the blocking client uses."""

    def open_transport(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Connect an asyncio protocol of the running loop."""


_proxies: dict[tuple[str, int], InProcessProxy] = {}


def enter_proxy(address: tuple[str, int], proxy: InProcessProxy) -> None:
    """Let connections to this address go to `proxy` until `remove_proxy` is called."""
    _proxies[address] = proxy


def remove_proxy(address: tuple[str, int]) -> None:
    """Let connections to this address go to the network again. May be called twice."""
    _proxies.pop(address, None)


def connect_in_process(address: tuple[str, int]) -> Any:
    """Return a connected socket of a proxy in this process; None: there is none at this address."""
    proxy = _proxies.get(address) if _proxies else None
    return None if proxy is None else proxy.open_socket()


def connect_protocol(address: tuple[str, int], make: Callable[[], P]) -> P | None:
    """Return a connected protocol, made by `make`; None: no proxy of this process has this address."""
    proxy = _proxies.get(address) if _proxies else None
    if proxy is None:
        return None
    protocol = make()
    protocol.connection_made(proxy.open_transport(protocol))
    return protocol
