"""Bad configuration files and bad command lines: one line with file, key, value, what is allowed.

Exit code 2 when the command line is wrong, 1 when what it names is.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ddmq.cli.root import run
from tests.scenarios.real_server import RealServer, ddmq, write_config

FREE = ["--producer", "127.0.0.1:0", "--consumer", "127.0.0.1:0", "--admin", "127.0.0.1:0"]

# file, its text, and what the one line must say
FILES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "not YAML": ("ddmq.yaml", "producer: [", ("is not YAML",)),
    "a tab": ("ddmq.yaml", "producer:\n\tx: 1\n", ("is not YAML",)),
    "not a mapping": ("ddmq.yaml", "- 1\n", ("mapping",)),
    "not text": ("ddmq.yaml", "\udcff\udcfe", ("cannot be read",)),
    "unknown key": ("ddmq.yaml", "drain_m: 1\n", (":1", "drain_m", "unknown key", "'drain_ms'")),
    "key twice": ("ddmq.yaml", "drain_ms: 1\ndrain_ms: 2\n", (":2", "drain_ms", "twice", "line 1")),
    "wrong type": ("ddmq.yaml", "drain_ms: soon\n", (":1", "drain_ms", "'soon'", "whole number")),
    "a truth value": ("ddmq.yaml", "drain_ms: true\n", ("drain_ms", "True", "whole number")),
    "below": ("ddmq.yaml", "drain_ms: -1\n", ("drain_ms", "-1", "0 to 600000")),
    "above": ("ddmq.yaml", "\n\ndrain_ms: 600001\n", (":3", "600001", "0 to 600000")),
    "choice": ("ddmq.yaml", "log_level: loud\n", ("log_level", "'loud'", "debug, info, warning, error")),
    "address": ("ddmq.yaml", "producer: here\n", ("producer", "'here'", "HOST:PORT")),
    "port": ("ddmq.yaml", "admin: 127.0.0.1:65536\n", ("admin", "65536", "0 to 65535")),
    "topic name": ("topics.yaml", "topics:\n  ../x: {}\n", ("topics", "'../x'", "not a letter")),
    "queues": ("topics.yaml", "topics:\n  t:\n    queues: 0\n", (":3", "topics.t.queues", "0", "1 to 1024")),
    "durability": ("topics.yaml", "topics:\n  t: {durability: maybe}\n", ("'maybe'", "sync, written")),
    "delay": ("topics.yaml", "topics:\n  t: {delay: some}\n", ("topics.t.delay", "'some'", "only")),
    "nested": ("proxy_producer.yaml", "rate:\n  burst_ms: 0\n", (":2", "rate.burst_ms", "0", "1 to 60000")),
    "topic of a rate": (
        "proxy_producer.yaml",
        "topic_rates:\n  a.b: {}\n",
        ("topic_rates", "'a.b'", "not a letter"),
    ),
    "two that clash": (
        "proxy_producer.yaml",
        "body_bytes_max: 8MiB\n",
        ("body_bytes_max", "8388608", "batch_bytes_max", "4194304"),
    ),
    "unit": ("proxy_producer.yaml", "body_bytes_max: 2MB\n", ("body_bytes_max", "'2MB'", "whole number")),
    "retries": (
        "proxy_consumer.yaml",
        "defaults:\n  retry_intervals_ms: [100, -1, 300]\n",
        ("retry_intervals_ms", "-1"),
    ),
    "start": ("proxy_consumer.yaml", "defaults: {start: soon}\n", ("'soon'", "first, last")),
    "rpc": ("rpc.yaml", "connections_max: 0\n", ("connections_max", "0", "at least 1")),
    "frame": ("rpc.yaml", "frame_bytes_max: 2GiB\n", ("frame_bytes_max", "2147483648", "2,147,483,647")),
    "log": ("file_log.yaml", "segment_bytes: 0\n", ("segment_bytes", "0", "above 0")),
    "retention": ("file_log.yaml", "retention:\n  age_ms: 0\n", ("retention", "age_ms", "0")),
}


@pytest.mark.parametrize("case", FILES)
def test_configuration_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    name, text, words = FILES[case]
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert run(["serve", "--data-dir", str(tmp_path / "data"), "--config", str(conf), *FREE]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.strip().splitlines()
    for word in (str(conf / name), *words):
        assert word in line, line
    assert not (tmp_path / "data").exists(), "nothing was begun"


# arguments, exit code, and what is said
LINES: dict[str, tuple[list[str], int, tuple[str, ...]]] = {
    "unknown command": (["serv"], 2, ("serv",)),
    "unknown option": (["serve", "--dta-dir", "x"], 2, ("--dta-dir", "--data-dir")),
    "no value": (["serve", "--data-dir"], 2, ("--data-dir",)),
    "address": (["serve", "--producer", "here"], 2, ("--producer", "'here'", "HOST:PORT")),
    "port": (["serve", "--admin", "127.0.0.1:99999"], 2, ("--admin", "99999", "65535")),
    "extra": (["serve", "now"], 2, ("now",)),
    "config that is not there": (["serve", "--config", "/nowhere"], 1, ("/nowhere", "not a folder")),
    "queues": (["topic", "create", "t", "--queues", "0"], 2, ("--queues", "0", "1<=x<=1024")),
    "durability": (["topic", "create", "t", "--durability", "x"], 2, ("--durability", "'sync'", "'written'")),
    "nothing to send": (["send", "t"], 2, ("nothing to send",)),
    "property": (["send", "t", "b", "--property", "x"], 2, ("'x'", "NAME=VALUE")),
    "file": (["send", "t", "--file", "/nowhere"], 2, ("/nowhere",)),
    "repeat": (["send", "t", "b", "--repeat", "0"], 2, ("--repeat", "0")),
    "missing argument": (["send"], 2, ("TOPIC",)),
    "no server": (["topic", "list", "--admin", "127.0.0.1:1"], 1, ("127.0.0.1:1", "ddmq serve")),
    "no proxy": (["send", "t", "b", "--producer", "127.0.0.1:1", "--timeout-ms", "300"], 1, ("127.0.0.1:1",)),
}


@pytest.mark.parametrize("case", LINES)
def test_command_lines(capsys: pytest.CaptureFixture[str], case: str) -> None:
    arguments, code, words = LINES[case]
    assert run(arguments) == code
    errors = capsys.readouterr().err
    for word in words:
        assert word in errors, errors


@pytest.mark.parametrize("processes", [[], ["--processes"]], ids=["one process", "processes"])
def test_as_a_process(tmp_path: Path, processes: list[str]) -> None:
    """The same of the real command: its exit code, nothing on standard output, one line."""
    conf = write_config(tmp_path / "conf", ddmq={"drain_ms": "soon"})
    where = ["--data-dir", str(tmp_path / "data"), "--config", str(conf)]
    process = ddmq("serve", *where, *FREE, *processes)
    assert (process.returncode, process.stdout) == (1, "")
    (line,) = process.stderr.strip().splitlines()
    assert "drain_ms" in line
    assert "'soon'" in line
    assert ddmq("serve", "--data-dir").returncode == 2


def test_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    process = ddmq("serve", "--data-dir", str(tmp_path / "data"), *FREE)
    assert process.returncode in (1, 2)
    assert str(tmp_path / "data") in process.stderr
    assert "Traceback" not in process.stderr


def test_a_port_in_use_ends_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound_socket:
        where = f"127.0.0.1:{bound_socket.getsockname()[1]}"
        process = ddmq("serve", "--data-dir", str(tmp_path / "data"), *FREE, "--consumer", where)
    assert process.returncode == 1
    assert where in process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize(
    ("method", "target", "body", "status"),
    [
        ("GET", "/nothing", None, 404),
        ("DELETE", "/topics", None, 405),
        ("GET", "/topics/unknown", None, 404),
        ("GET", "/groups/unknown", None, 404),
        ("POST", "/topics/x", {"queues": "many"}, 400),
        ("POST", "/topics/x", {"queus": 1}, 400),
        ("POST", "/topics/x", {"queues": 1025}, 400),
        ("POST", "/topics/%25RETRY%25g", {"create": True}, 400),
        ("POST", "/groups/g", {"topics": "t"}, 400),
        ("POST", "/groups/g", {"topics": [], "start": "first"}, 400),
        ("POST", "/groups/g", {"topics": ["quiet"], "start": "soon"}, 400),
        ("POST", "/groups/g", {"topics": ["quiet"], "ack_timeout_ms": -1}, 400),
        ("GET", "/topics/quiet/messages?offset=-1", None, 400),
        ("GET", "/topics/quiet/messages?count=x", None, 400),
        ("GET", "/topics/quiet/messages?id=zz", None, 400),
        ("GET", "/topics/quiet/messages?queue=99&offset=0", None, 404),
    ],
)
def test_admin_requests(
    server: RealServer, method: str, target: str, body: dict[str, object] | None, status: int
) -> None:
    answered_status, answer = server.request(method, target, body)
    assert answered_status == status, answer
    assert answer["error"]
