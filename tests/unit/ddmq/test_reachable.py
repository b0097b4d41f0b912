"""Where other proxies are told to find this one."""

import socket

import pytest

from ddmq.address import Address
from ddmq.server.process.parts import reachable


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_any_address_is_told_by_the_machines_name(host: str) -> None:
    assert reachable(Address(host, 9713)) == Address(socket.gethostname(), 9713)


def test_any_other_is_told_as_it_is() -> None:
    assert reachable(Address("10.1.2.3", 9713)) == Address("10.1.2.3", 9713)
