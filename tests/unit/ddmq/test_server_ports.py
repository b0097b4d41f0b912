"""All ports of a server are checked before it starts, and every one that is taken is named."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ddmq.server.config import Configuration, load_folder, with_flags
from ddmq.server.process.ports import check_ports
from ddmq_common.errors import ConfigError

ANY = "127.0.0.1:0"
COMPONENTS = ("producer", "consumer", "admin")


@pytest.fixture
def used_addresses() -> Iterator[list[str]]:
    """Three addresses on which somebody listens."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in COMPONENTS]
        yield [f"127.0.0.1:{each.getsockname()[1]}" for each in listeners]


def configured(producer: str = ANY, consumer: str = ANY, admin: str = ANY) -> Configuration:
    return with_flags(Configuration(), producer=producer, consumer=consumer, admin=admin)


def reason(config: Configuration, components: tuple[str, ...] = COMPONENTS) -> str:
    with pytest.raises(ConfigError) as raised:
        check_ports(config, components)
    return str(raised.value)


def test_free_ports_are_no_error() -> None:
    check_ports(configured(), COMPONENTS)


def test_every_taken_port_is_named_with_its_flag_and_key(used_addresses: list[str]) -> None:
    producer, consumer, admin = used_addresses
    assert reason(configured(producer, consumer, admin)) == (
        f"cannot listen on {producer} for --producer, {consumer} for --consumer, {admin} for --admin: "
        "Address already in use; a server may be running there (`ddmq stats` asks it); choose free ports of "
        f"an own address, for example --producer {ANY} --consumer {ANY} --admin {ANY} for any "
        "(in ddmq.yaml: producer, consumer, admin)"
    )


def test_a_free_port_is_not_named(used_addresses: list[str]) -> None:
    text = reason(configured(producer=used_addresses[0], admin=used_addresses[2]))
    assert f"{used_addresses[0]} for --producer, {used_addresses[2]} for --admin: " in text
    assert "consumer" not in text


def test_only_the_ports_of_the_parts_that_run_here_are_checked(used_addresses: list[str]) -> None:
    config = configured(producer=used_addresses[0], consumer=used_addresses[1])
    check_ports(config, ("delay", "admin"))
    assert "--consumer" not in reason(config, ("producer", "admin"))


def test_two_parts_with_one_address(used_addresses: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = f"127.0.0.1:{listener.getsockname()[1]}"
    text = reason(configured(producer=free, consumer=free))
    assert text.startswith(f"cannot listen on {free} for --consumer: --producer has the same address; ")
    assert "a server may be running" not in text


def test_an_address_of_another_machine_has_its_own_reason(used_addresses: list[str]) -> None:
    text = reason(configured(producer=used_addresses[0], consumer="192.0.2.1:9713"))
    assert (
        f"{used_addresses[0]} for --producer: Address already in use; 192.0.2.1:9713 for --consumer: " in text
    )


def test_the_line_of_a_file_that_names_the_port_is_stated(used_addresses: list[str], tmp_path: Path) -> None:
    path = tmp_path / "ddmq.yaml"
    path.write_text(f"drain_ms: 1\nproducer: {used_addresses[0]}\nconsumer: {ANY}\nadmin: {ANY}\n")
    assert f"cannot listen on {used_addresses[0]} for --producer ({path}:2): " in reason(
        load_folder(tmp_path, {})
    )
    by_variable = load_folder(
        None, {"DDMQ__PRODUCER": used_addresses[0], "DDMQ__CONSUMER": ANY, "DDMQ__ADMIN": ANY}
    )
    assert "for --producer (variable DDMQ__PRODUCER): " in reason(by_variable)
