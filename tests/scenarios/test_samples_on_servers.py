"""Real servers write samples: every kind of process, killed in the middle, with nowhere to write to."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from ddmq_common.metrics import samples
from ddmq_common.metrics.samples import PROCESS, SampleLine, decode
from tests.interop.apache_client import Client
from tests.scenarios.real_server import RealServer, running, write_config
from tests.support.waits import until

INTERVAL_MS = 200
SLACK_MS = 10_000  # of a machine that is busy with other things
MACHINE = socket.gethostname()


def config(folder: Path, **samples: object) -> Path:
    return write_config(folder / "conf", ddmq={"samples": {"interval_ms": INTERVAL_MS} | samples})


def read(root: Path) -> dict[str, list[list[SampleLine]]]:
    """Every file that a reader sees, by instance and in order. Asserts that all are whole."""
    files_of: dict[str, list[list[SampleLine]]] = {}
    for path in root.rglob("*.jsonl"):
        if path.name.startswith("."):
            continue
        name = samples.parse(path.name)
        assert name is not None, path
        text = path.read_bytes()
        assert text.endswith(b"\n"), path
        lines = [decode(line) for line in text.splitlines()]
        assert (lines[0].metric, lines[0].value) == (PROCESS, len(lines)), path
        assert {(line.instance, line.seq) for line in lines} == {(name.instance, name.first)}
        files_of.setdefault(name.instance, []).append(lines)
    for files in files_of.values():
        files.sort(key=lambda lines: lines[0].seq)
        assert [lines[0].seq for lines in files] == list(range(len(files)))
        assert all(before[0].to == after[0].from_ for before, after in pairwise(files))
    return files_of


def stored(files: list[list[SampleLine]], topic: str = "t") -> float:
    """Messages answered with code 0, as the files say."""
    return sum(
        line.value
        for lines in files
        for line in lines
        if line.metric == "ddmq_sends_total" and line.labels == {"topic": topic, "code": "0"}
        if isinstance(line.value, int | float)
    )


def lag_of(lines: list[SampleLine]) -> float:
    """The lag of all groups that a file tells."""
    lags = [line.value for line in lines if line.metric == "ddmq_lag"]
    return sum(lag for lag in lags if isinstance(lag, int | float))


def states(files: list[list[SampleLine]]) -> list[str]:
    return [lines[0].labels["state"] for lines in files]


class Load(threading.Thread):
    """Sends one message after the other until the server is gone."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.answered: list[int] = []  # when, epoch ms
        self.requested = 0

    def run(self) -> None:
        try:
            with Client(self.port) as client:
                while True:
                    self.requested += 1
                    assert client.send("t", b"x" * 100).code == 0
                    self.answered.append(time.time_ns() // 1_000_000)
        except Exception:
            return  # killed: that is the test


@pytest.mark.slow
def test_a_kill_loses_one_interval_at_most_and_leaves_no_half_file(tmp_path: Path) -> None:
    server = RealServer(tmp_path, config(tmp_path))
    root = server.data_dir / "metrics"
    earlier_instances: set[str] = set()
    try:
        for _ in range(3):
            server.start()
            server.admin("POST", "topics", "t", body={"create": not earlier_instances})
            load = Load(server.ports["producer"])
            load.start()
            until(lambda load=load: len(load.answered) > 50, "messages are stored")
            until(
                lambda: any(
                    len(files) > 2 for key, files in read(root).items() if key not in earlier_instances
                ),
                "samples",
            )
            killed_ms = time.time_ns() // 1_000_000
            server.kill()
            load.join(60)
            files_of = read(root)
            (instance,) = files_of.keys() - earlier_instances
            earlier_instances.add(instance)
            files = files_of[instance]
            end_ms = files[-1][0].to
            assert states(files) == ["first", *["running"] * (len(files) - 1)]
            assert sum(at < end_ms for at in load.answered) <= stored(files) <= load.requested
            assert killed_ms - end_ms <= INTERVAL_MS + SLACK_MS
    finally:
        server.end()
    assert len(earlier_instances) == 3, "each start is an instance of its own"


def test_a_server_that_stops_in_order_tells_everything(tmp_path: Path) -> None:
    with running(tmp_path, config(tmp_path, interval_ms=3_600_000)) as server:
        server.admin("POST", "topics", "t", body={"create": True})
        server.admin("POST", "groups", "g", body={"topics": ["t"], "start": "first"})
        with Client(server.ports["producer"]) as client:
            for _ in range(20):
                assert client.send("t", b"x").code == 0
        until(lambda: server.metric("ddmq_lag", group="g", topic="t") == 20, "the lag is told")
        server.terminate()
        assert server.wait() == 0
        (files,) = read(server.data_dir / "metrics").values()
        assert states(files) == ["first", "stopping", "last"]
        assert stored(files) == 20
        assert lag_of(files[1]) == 20
        assert files[0][0].process.startswith(f"producer+consumer+delay@{MACHINE}")


def test_samples_that_cannot_be_written_are_written_later(tmp_path: Path) -> None:
    in_the_way = tmp_path / "place"
    in_the_way.write_text("a file where the folder should be")
    with running(tmp_path, config(tmp_path, dir=str(in_the_way / "metrics"))) as server:
        server.admin("POST", "topics", "t", body={"create": True})
        with Client(server.ports["producer"]) as client:
            for _ in range(30):
                assert client.send("t", b"x").code == 0
            until(lambda: server.metric("ddmq_samples_failed_total", reason="missing") >= 3, "counted")
            assert server.request("GET", "/ready")[0] == 200
            assert server.metric("ddmq_samples_written_total") == 0
            assert server.log.count("sample files: cannot write") == 1
            in_the_way.unlink()
            until(lambda: server.metric("ddmq_samples_written_total") >= 2, "written")
            assert client.send("t", b"x").code == 0
        server.terminate()
        assert server.wait() == 0
        assert server.log.count("sample files: can write again") == 1
        (files,) = read(in_the_way).values()
        assert stored(files[:1]) == 30, "all of it in the first file"
        assert stored(files) == 31


def test_every_kind_of_process_answers_and_writes(tmp_path: Path) -> None:
    settings = config(tmp_path)
    servers = [
        RealServer(tmp_path, settings, command=kind) for kind in ("delay-service", "producer", "consumer")
    ]
    try:
        for server in servers:
            server.ports = dict.fromkeys(server.ports, 0)  # with others they would be part of its name
            server.start()
        for server in servers:
            assert server.admin("GET", "health")["alive"] is True
            until(
                lambda server=server: server.request("GET", "/ready")[0] == 200, f"{server.command} is ready"
            )
            assert "ddmq_samples_written_total" in server.request("GET", "/metrics")[1]
        root = servers[0].data_dir / "metrics"
        until(lambda: all(server.metric("ddmq_samples_written_total") > 1 for server in servers), "samples")
        for server in reversed(servers):
            server.terminate()
            assert server.wait() == 0
    finally:
        for server in servers:
            server.end()
    files_of = read(root)
    assert {files[0][0].process for files in files_of.values()} == {
        f"{component}@{MACHINE}" for component in ("delay", "producer", "consumer")
    }
    assert {tuple(states(files)[-2:]) for files in files_of.values()} == {("stopping", "last")}


@pytest.mark.slow
def test_components_of_one_serve_keep_their_names_over_restarts(tmp_path: Path) -> None:
    server = RealServer(tmp_path, config(tmp_path), processes=True)
    expected = {
        f"{component}@{MACHINE}:{server.ports['admin']}" for component in ("delay", "producer", "consumer")
    }
    try:
        for life in (1, 2):
            server.start()
            root = server.data_dir / "metrics"
            until(lambda: len(read(root)) == 3 * life, "an instance for each part")  # noqa: B023
            server.terminate()
            assert server.wait() == 0
    finally:
        server.end()
    files_of = read(root)
    assert Counter(files[0][0].process for files in files_of.values()) == dict.fromkeys(expected, 2)
    assert all(states(files)[-1] == "last" for files in files_of.values())
