"""Commands in a folder, and with a PYTHONPATH, whose packages are called as ours are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddmq_command import PACKAGES
from tests.scenarios.real_server import RealServer, running
from tests.support.waits import until

SCRIPT = str(Path(sys.executable).with_name("ddmq"))
RUN_BY_PYTHON = "ddmq"  # which `python -m ddmq` takes from the working folder, before anything of ours runs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's project, by bad luck."""
    for name in {*PACKAGES} - {RUN_BY_PYTHON}:
        package(tmp_path, name)
    return tmp_path


def package(folder: Path, name: str) -> None:
    """Make a package that ends the process which imports it."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("raise SystemExit('the folder of the user was imported')")


def command(folder: Path, *line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        line,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("environment", [{}, {"PYTHONPATH": "."}, {"PYTHONPATH": ""}])
def test_a_command_imports_its_own_packages(folder: Path, environment: dict[str, str]) -> None:
    for line in ([sys.executable, "-m", "ddmq", "doctor"], [SCRIPT, "doctor"]):
        result = command(folder, *line, **environment)
        assert "the folder of the user" not in result.stderr
        assert "fdatasync" in result.stdout


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_of_an_application_is_not_imported_from_pythonpath(tmp_path: Path, name: str) -> None:
    package(tmp_path, name)
    result = command(Path("/"), SCRIPT, "doctor", PYTHONPATH=f"/nowhere:{tmp_path}")
    assert result.stderr == ""
    assert "fdatasync" in result.stdout


@pytest.mark.parametrize("processes", [False, True])
def test_a_server_and_its_processes_do_not_import_it_either(
    folder: Path, processes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(folder, RUN_BY_PYTHON)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr("tests.scenarios.real_server.ddmq_command", lambda *line: [SCRIPT, *line])
    with running(folder / "server", processes=processes) as server:
        until(lambda: server.request("GET", "/ready")[0] == 200, "it is ready")


@pytest.mark.parametrize("processes", [False, True])
def test_a_server_and_its_processes_import_their_own_packages(
    folder: Path, processes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.scenarios.real_server._REPOSITORY", folder)
    with running(folder / "server", processes=processes) as server:
        assert isinstance(server, RealServer)
        until(lambda: server.request("GET", "/ready")[0] == 200, "it is ready")


def test_the_demo_starts_its_server_so(folder: Path) -> None:
    """The demo itself takes a minute; that its server comes up is seen in its first lines."""
    code = (
        "from pathlib import Path; from ddmq.demo.server import DemoServer; "
        "server = DemoServer(Path('data')); server.start(); server.stop(); print('up')"
    )
    result = command(folder, sys.executable, "-P", "-c", code)
    assert result.stdout.endswith("up\n"), result.stderr
