"""`ddmq doctor` looks at what `ddmq serve` would use with the same options, and names a missing library."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from backend.file_log.lock import DirectoryLock
from ddmq.address import HostPort
from ddmq.check_result import FAILED, OK, WARNING, CheckResult
from ddmq.cli.doctor import NEEDED, run_checks


def findings(data_dir: Path | None, config_dir: Path | None) -> dict[str, CheckResult]:
    return {finding.check: finding for finding in run_checks(data_dir, config_dir)}


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    folder = tmp_path / "conf"
    folder.mkdir()
    ports = "".join(f"{component}: 127.0.0.1:0\n" for component in ("producer", "consumer", "admin"))
    (folder / "ddmq.yaml").write_text(f"data_dir: {tmp_path / 'log'}\n{ports}")
    return folder


def test_the_directory_is_the_configurations(tmp_path: Path, conf: Path) -> None:
    assert findings(None, conf)["directory"].summary == f"{tmp_path / 'log'} (will be made)"
    (tmp_path / "log").write_text("a file is in the way")
    result = findings(None, conf)["directory"]
    assert (result.status, result.summary) == (FAILED, f"{tmp_path / 'log'} is not a folder")


def test_a_server_that_uses_the_directory_is_named(tmp_path: Path, conf: Path) -> None:
    (tmp_path / "log").mkdir(mode=0o700)
    assert findings(None, conf)["directory"].summary == str(tmp_path / "log")
    lock = DirectoryLock.acquire(tmp_path / "log", 0)
    try:
        result = findings(None, conf)["directory"]
    finally:
        lock.release()
    assert (result.status, result.remedy) == (OK, "another server with this directory joins that one")
    assert result.summary.startswith(f"{tmp_path / 'log'}, in use by a server (pid ")


def test_with_a_wrong_configuration_nobody_knows_which_directory(conf: Path) -> None:
    (conf / "ddmq.yaml").write_text("data_dr: x\n")
    assert "directory" not in findings(None, conf)


def test_an_option_goes_before_the_configuration(tmp_path: Path, conf: Path) -> None:
    (tmp_path / "log").write_text("a file is in the way")
    result = findings(tmp_path / "other", conf)["directory"]
    assert (result.status, result.summary) == (OK, f"{tmp_path / 'other'} (will be made)")


@pytest.mark.parametrize(
    ("marks", "status", "remedy"),
    [
        (("clean",), WARNING, "cleaning starts under"),
        (("clean", "refuse"), FAILED, "sends are refused under"),
    ],
)
def test_the_marks_are_the_configurations(
    conf: Path, marks: tuple[str, ...], status: str, remedy: str
) -> None:
    always = "".join(f"  {mark}_free_bytes: 1000000TiB\n  {mark}_free_percent: 100\n" for mark in marks)
    (conf / "file_log.yaml").write_text(f"retention:\n{always}")
    result = findings(None, conf)["disk space"]
    assert (result.status, result.remedy[: len(remedy)]) == (status, remedy)


def test_libraries_that_are_there_are_one_line_and_versions_are_told(conf: Path) -> None:
    results = findings(None, conf)
    assert results["libraries"].summary == f"all {len(NEEDED)} there"
    assert not [check for check in results if check.startswith("library ")]
    assert ", ddmq-proxy " in results["python"].summary
    assert results["ddmq report"].status == OK


@pytest.mark.parametrize(("running", "status"), [("ready", OK), ("", WARNING)])
def test_taken_ports_are_as_they_should_be_while_a_server_runs(
    conf: Path, monkeypatch: pytest.MonkeyPatch, running: str, status: str
) -> None:
    def health(address: HostPort) -> dict[str, object]:
        return {"ready": True, "reason": ""} if running else {}

    monkeypatch.setattr("ddmq.cli.doctor._server_health", health)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        ports = "".join(f"{component}: 127.0.0.1:{port}\n" for component in ("producer", "consumer", "admin"))
        (conf / "ddmq.yaml").write_text(f"data_dir: {conf / 'log'}\n{ports}")
        results = findings(None, conf)
    assert [results[f"{component} port"].status for component in ("producer", "consumer", "admin")] == [
        status
    ] * 3


def test_a_warning_of_the_server_that_runs_is_a_finding(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def health(address: HostPort) -> dict[str, object]:
        return {"ready": True, "reason": "", "warning": "two state h:1: set advertise on each"}

    monkeypatch.setattr("ddmq.cli.doctor._server_health", health)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        (conf / "ddmq.yaml").write_text(
            f"data_dir: {conf / 'log'}\nadmin: 127.0.0.1:{listener.getsockname()[1]}\n"
        )
        result = findings(None, conf)["server"]
    assert (result.status, result.summary) == (FAILED, "two state h:1")
    assert result.remedy.startswith("set advertise on each")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NEEDED if name != "thrift.protocol.fastbinary"])
def test_a_library_that_is_missing_is_named(name: str) -> None:
    line = f"import sys; sys.modules[{name!r}] = None; from ddmq.cli.root import run; run(['doctor'])"
    run = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, timeout=60)
    assert run.stderr == ""
    (row,) = [row for row in run.stdout.splitlines() if FAILED in row]
    assert f"library {name}" in row
