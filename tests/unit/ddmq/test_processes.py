"""Where the parts of `serve --processes` have their own admin API."""

from __future__ import annotations

import socket

import pytest

from ddmq.address import Address
from ddmq.server.processes import admin_of_part

HOST = "127.0.0.1"


def free_above(above: int) -> int:
    """A port so that the one so much above it is free, outside the range of outgoing connections."""
    for port in range(20_000, 30_000):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port + above))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


@pytest.mark.parametrize(("name", "above"), [("consumer", 0), ("producer", 100), ("delay-service", 200)])
def test_the_ports_are_known_beforehand(name: str, above: int) -> None:
    port = free_above(above)
    assert admin_of_part(Address(HOST, port), name) == Address(HOST, port + above)


def test_a_port_that_is_taken_is_left_alone() -> None:
    port = free_above(100)
    with socket.create_server((HOST, port + 100)):
        assert admin_of_part(Address(HOST, port), "producer") == Address(HOST, 0)


@pytest.mark.parametrize("port", [0, 32_700, 65_500])
def test_a_port_that_was_chosen_by_the_system_says_nothing(port: int) -> None:
    assert admin_of_part(Address(HOST, port), "producer") == Address(HOST, 0)
