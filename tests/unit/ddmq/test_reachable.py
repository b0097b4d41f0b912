"""Where other proxies are told to find this one."""

import socket

import pytest

from backend.port import Health
from ddmq.address import HostPort
from ddmq.server.admin.routes import health_fields
from ddmq.server.process.server_process import reachable_address


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_any_address_is_told_by_the_machines_name(host: str) -> None:
    assert reachable_address(HostPort(host, 9713)) == HostPort(socket.gethostname(), 9713)


def test_any_other_is_told_as_it_is() -> None:
    assert reachable_address(HostPort("10.1.2.3", 9713)) == HostPort("10.1.2.3", 9713)


def test_a_warning_of_the_engine_is_part_of_health_if_there_is_one() -> None:
    assert health_fields(Health(True, "")) == {"ready": True, "reason": ""}
    assert health_fields(Health(True, "", "w")) == {"ready": True, "reason": "", "warning": "w"}
