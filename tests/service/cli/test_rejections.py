"""What is wrong is said in one line: the value, what is allowed, what to do. Exit code 1, or 2 for usage."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ddmq.address import HostPort
from ddmq.cli.admin_client import AdminClient
from ddmq.cli.messages import pull, sending
from ddmq.cli.messages.sending import HELP
from tests.scenarios.real_server import ddmq
from tests.service.cli.conftest import Shell


@pytest.mark.parametrize(
    "line",
    [
        "topic show _", "topic create _", "topic update _ --queues 3", "topic delete _ --yes",
        "group show _", "group set g --topic _", "group set _ --topic owned", "group create g --topic _",
        "group delete _ --yes", "group keys _", "group park _ k", "offset show _", "offset show g --topic _",
        "offset reset g --topic _ --to first", "lag _", "dlq show _", "dlq list _", "message _",
        "message owned --key _", "message owned --group _", "pull _", "pull owned --group _", "tail _",
        "tail owned --key _", "tail owned --grep _",
        "send _ x", "delay list _", "delay show _",
    ],
)  # fmt: skip
def test_an_empty_name_is_no_name(shell: Shell, line: str) -> None:
    """As a variable of a shell that is not set leaves it."""
    error = shell.refused(*(word.replace("_", "") for word in line.split()), code=2)
    assert "'' is empty; allowed: 1 character or more" in error


def test_an_empty_topic_deletes_no_group(shell: Shell, topic: str) -> None:
    shell("group", "create", topic, "--topic", "owned")
    error = shell.refused("group", "delete", topic, "--topic", "", "--yes", code=2)
    assert "'--topic': '' is empty" in error
    admin = AdminClient(HostPort("127.0.0.1", shell.server.ports["admin"]))
    with pytest.raises(click.ClickException, match="does not consume topic ''"):
        admin.delete("groups", topic, topic="")
    with pytest.raises(
        click.ClickException, match="'topics' is no query name of this request; did you mean 'topic'"
    ):
        admin.delete("groups", topic, topics="owned")
    assert [each["topic"] for each in shell.json("group", "show", topic)["subscriptions"]] == ["owned"]


def test_messages_that_cannot_be_saved_are_not_pulled(shell: Shell, topic: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    shell("send", topic, "one")
    error = shell.refused("pull", topic, "--group", topic, "--save-to", str(tmp_path / "file" / "folder"))
    assert f"--save-to: {tmp_path}/file/folder cannot be written: Not a directory" in error
    folder = tmp_path / "folder"
    folder.mkdir()
    shell("pull", topic, "--group", topic, "--count", "1", "--save-to", str(folder))
    (saved,) = folder.iterdir()
    assert saved.read_text() == "one"


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where a connection is refused."""
    with socket.socket() as bound_socket:
        bound_socket.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound_socket.getsockname()[1]}"


@pytest.mark.parametrize("line", ["stats", "topic list", "group list", "message t", "tail t", "pull t"])
def test_no_server(shell: Shell, nobody: str, line: str) -> None:
    error = shell.refused(*line.split(), "--admin", nobody)
    assert error.startswith(f"no server answers at {nobody} (Connection refused); ")
    assert "ddmq serve" in error
    assert "--admin" in error


def test_no_producer_proxy(shell: Shell, nobody: str) -> None:
    shell("send", "t", "hello", "--producer", nobody, "--timeout-ms", "300", code=1)
    first, second = shell.error.splitlines()
    assert first.startswith("not stored: ")
    assert nobody in first
    assert "ddmq serve" in second
    report = shell.json("send", "t", "hello", "--producer", nobody, "--timeout-ms", "300", code=1)
    assert (report["stored"], report["failed"], report["results"][0]["id"]) == (0, 1, None)


@pytest.mark.parametrize(
    "line",
    [
        "send t x",
        "delay add t x --delay 1h",
        "delay cancel ID",
        "delay fire ID",
        "delay reschedule ID --delay 1h",
    ],
)
def test_a_silent_producer_proxy_is_reported_soon_with_a_hint(
    shell: Shell, nobody: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ident = f"{'0' * 8}-{'0' * 4}-{'0' * 4}-{'0' * 4}-{'0' * 12}"
    command = [*line.replace("ID", ident).split(), "--producer", nobody, "--timeout-ms"]
    shell(*command, "300", code=1)
    assert shell.error.count(HELP) == 1
    assert "yet" not in shell.error, "it was over sooner"
    assert all(HELP not in str(text) for text in shell.lines(*command, "300", code=1))
    assert shell.error == "", "programs are told in the document"
    monkeypatch.setattr(sending, "PATIENCE_S", 0.02)
    shell(*command, "300", code=1)
    first, second, *_ = shell.error.splitlines()
    assert (first, second) == (f"no answer from {nobody} yet; trying for 300 ms", HELP)
    assert shell.error.count(HELP) == 1


@pytest.mark.parametrize("line", ["send orders x", "delay add orders x --delay 5s"])
def test_a_send_to_the_admin_port_is_told_which_port_it_is(shell: Shell, line: str) -> None:
    admin = f"127.0.0.1:{shell.server.ports['admin']}"
    shell(*line.split(), "--producer", admin, "--timeout-ms", "300", code=1)
    hint = (
        f"{admin} is an admin port; --producer takes the producer port, which `ddmq serve` prints when ready"
    )
    assert hint in shell.error.splitlines()
    assert HELP not in shell.error


def test_a_pull_from_the_admin_port_is_told_which_port_it_is(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "REACH_S", 0.3)
    admin = f"127.0.0.1:{shell.server.ports['admin']}"
    error = shell.refused("pull", "orders", "--group", "g", "--consumer", admin)
    assert error.endswith(
        f"{admin} is an admin port; --consumer takes the consumer port, which `ddmq serve` prints when ready"
    )


def test_no_consumer_proxy(shell: Shell, nobody: str) -> None:
    error = shell.refused("pull", "owned", "--group", "unreachable", "--consumer", nobody, "--json")
    assert nobody in error
    assert "--consumer" in error


@pytest.mark.parametrize("component", ["producer", "admin"])
def test_a_pull_from_another_port_makes_nothing(shell: Shell, component: str) -> None:
    address = f"127.0.0.1:{shell.server.ports[component]}"
    error = shell.refused("pull", "owned", "--group", "elsewhere", "--consumer", address)
    assert f"no consumer proxy at {address}" in error
    assert "elsewhere" not in {row["group"] for row in shell.json("group", "list")}


def test_a_port_that_is_no_admin_port_is_an_error(shell: Shell) -> None:
    address = f"127.0.0.1:{shell.server.ports['producer']}"
    assert shell.refused("stats", "--admin", address).startswith(f"{address} is not a ddmq admin port")


def test_deleting_asks(shell: Shell, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shell("topic", "create", topic)
    for answer in ("", "n\n"):
        process = ddmq(
            "topic", "delete", topic, "--admin", f"127.0.0.1:{shell.server.ports['admin']}",
            stdin=answer.encode(),
        )  # fmt: skip
        assert process.returncode == 1
        assert "nothing was done" in process.stderr
    assert shell.json("topic", "show", topic)["topic"] == topic


@pytest.mark.parametrize("component", ["producer", "consumer", "admin"])
def test_a_port_in_use(shell: Shell, component: str, tmp_path: Path) -> None:
    used_address = f"127.0.0.1:{shell.server.ports[component]}"
    ports = {"producer": "127.0.0.1:0", "consumer": "127.0.0.1:0", "admin": "127.0.0.1:0"} | {
        component: used_address
    }
    flags = [word for name, address in ports.items() for word in (f"--{name}", address)]
    process = ddmq("serve", "--data-dir", str(tmp_path / "data"), *flags)
    assert (process.returncode, process.stdout) == (1, "")
    (error,) = [line for line in process.stderr.splitlines() if line.startswith("Error: ")]
    assert f"cannot listen on {used_address} for --{component}: Address already in use; " in error
    assert "attempting" not in error


@pytest.mark.parametrize("more", [(), ("--processes",)])
def test_all_ports_in_use_are_named_before_anything_starts(
    shell: Shell, more: tuple[str, ...], tmp_path: Path
) -> None:
    ports = {
        component: f"127.0.0.1:{shell.server.ports[component]}"
        for component in ("producer", "consumer", "admin")
    }
    flags = [word for name, address in ports.items() for word in (f"--{name}", address)]
    process = ddmq("serve", "--data-dir", str(tmp_path / "data"), *flags, *more)
    assert (process.returncode, process.stdout) == (1, "")
    (error,) = [line for line in process.stderr.splitlines() if line.startswith("Error: ")]
    assert ", ".join(f"{address} for --{component}" for component, address in ports.items()) in error
    assert not (tmp_path / "data").exists()


def test_a_directory_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    any_port = [
        word for component in ("producer", "consumer", "admin") for word in (f"--{component}", "127.0.0.1:0")
    ]
    process = ddmq("serve", "--data-dir", "/proc/none/data", *any_port)
    assert (process.returncode, process.stdout) == (1, "")
    assert "Error: cannot start over --data-dir /proc/none/data: " in process.stderr
    (tmp_path / "file").write_text("x")
    process = ddmq("serve", "--data-dir", str(tmp_path / "file"))
    assert process.returncode == 2
    assert "is a file" in process.stderr


def test_an_invalid_configuration_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "topics.yaml").write_text("topics:\n- name: x\n")
    process = ddmq("serve", "--data-dir", str(tmp_path / "data"), "--config", str(tmp_path))
    assert process.returncode == 1
    assert process.stderr.splitlines()[-1].endswith("topics.yaml:1: topics: is a list; a mapping is wanted")
