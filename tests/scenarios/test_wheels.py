"""What users install: the server's wheel and the client's, alone and beside each other."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from ddmq_command import PACKAGES
from tests.support.wheels import (
    client_wheel,
    contents,
    install,
    installed_alone,
    packages_folder,
    pip,
    server_wheel,
)
from tools.tree_copy import ROOT

REMEDY = "in the source tree: pip install --force-reinstall --no-deps ."


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The server's wheel, nothing of it compiled, and the client's."""
    return server_wheel(tmp_path_factory.mktemp("server")), client_wheel(
        tmp_path_factory.mktemp("c") / "client"
    )


@pytest.fixture(scope="module")
def home(wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the server's wheel; for tests that change nothing in it."""
    folder = tmp_path_factory.mktemp("home")
    installed_alone(wheels[0], folder)
    return folder


def run(home: Path, *line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(home / "bin" / "ddmq"), *line]
    variables = os.environ | environment
    return subprocess.run(
        command, cwd="/", env=variables, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("number", [0, 1])
def test_each_carries_its_licence(wheels: tuple[Path, Path], number: int) -> None:
    (path,) = [name for name in contents(wheels[number]) if name.endswith(".dist-info/METADATA")]
    folder = path.removesuffix("METADATA") + "licenses/"
    with zipfile.ZipFile(wheels[number]) as archive:
        metadata = message_from_bytes(archive.read(path))
        for name in ("LICENSE", "NOTICE"):
            assert archive.read(folder + name) == (ROOT / name).read_bytes()
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE", "NOTICE"]


@pytest.mark.parametrize("name", PACKAGES)
def test_what_is_installed_runs_beside_an_application_with_packages_of_the_same_names(
    home: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    result = run(home, "doctor", PYTHONPATH=str(tmp_path))
    assert result.stderr == ""
    assert "fdatasync" in result.stdout


def test_a_package_that_still_hides_one_of_ddmq_is_named(wheels: tuple[Path, Path], tmp_path: Path) -> None:
    installed_alone(wheels[0], tmp_path / "home")
    (tmp_path / "app" / "backend").mkdir(parents=True)
    (tmp_path / "app" / "backend" / "__init__.py").touch()
    line = f"import sys; sys.path.insert(0, {str(tmp_path / 'app')!r})"
    packages_folder(tmp_path / "home").joinpath("app.pth").write_text(line)
    result = run(tmp_path / "home", "doctor")
    assert result.returncode == 1
    assert result.stderr.startswith(
        f"Error: Python finds the package backend in {tmp_path / 'app'}, not the one of ddmq"
    )
    assert f"take {tmp_path / 'app'} off Python's import path" in result.stderr
    assert result.stderr.count("\n") == 1


def test_installing_the_client_beside_the_server_warns_and_its_removal_is_reported(
    wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    installed_alone(wheels[0], home)
    install(home, wheels[1])
    (check,) = [
        each for each in json.loads(run(home, "doctor", "--json").stdout) if each["check"] == "ddmq-client"
    ]
    assert check["status"] == "warning"
    assert "uninstalling one of them removes it" in check["found"]
    assert check["remedy"] == f"run: pip uninstall ddmq-client; then {REMEDY}"
    pip(home, "uninstall", "--yes", "ddmq-client")
    result = run(home, "lag")
    assert result.returncode == 1
    assert result.stderr.startswith("Error: the package ddmq_client is missing in ")
    assert result.stderr.endswith(f"; {REMEDY}\n")
    assert result.stderr.count("\n") == 1
