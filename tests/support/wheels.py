"""Wheels, and environments that hold what was built and nothing of the tree."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

from ddmq_common import compiled
from tools.tree_copy import ROOT, copy_installed


def server_wheel(folder: Path, modules: Sequence[str] = (), **environment: str) -> Path:
    """Build the server's wheel in `folder` from a copy of the tree in which only `modules` are compiled."""
    source = folder / "source"
    copy_installed(source)
    project = (source / "pyproject.toml").read_text()
    short = re.sub(r"^compiled = \[.*?^\]", f"compiled = {json.dumps(modules)}", project, flags=re.M | re.S)
    (source / "pyproject.toml").write_text(short)
    variables = {name: value for name, value in os.environ.items() if name != compiled.SWITCH} | environment
    if not modules:
        variables[compiled.SWITCH] = "0"
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(folder), str(source)], env=variables, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def client_wheel(folder: Path) -> Path:
    """Build the client's wheel in `folder`, which must not exist."""
    subprocess.run([sys.executable, str(ROOT / "tools" / "client_wheel.py"), str(folder)], check=True)
    (wheel,) = folder.iterdir()
    return wheel


def contents(wheel: Path) -> list[str]:
    """The names of the files in it."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def installed_alone(wheel: Path, home: Path) -> str:
    """Install it into a new environment that has this one's libraries; returns the path of its `ddmq`."""
    venv.create(home)
    install(home, wheel)
    libraries = importlib.util.find_spec("click")
    assert libraries is not None
    assert libraries.origin is not None
    packages_folder(home).joinpath("libraries.pth").write_text(str(Path(libraries.origin).parents[1]))
    return str(home / "bin" / "ddmq")


def install(home: Path, *wheels: Path) -> None:
    """Install wheels, without what they need, into the environment `home`."""
    pip(home, "install", "--no-deps", "--no-index", *map(str, wheels))


def pip(home: Path, *line: str) -> None:
    """Run a pip command on the environment `home`, which has none of its own."""
    command = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "--quiet"]
    subprocess.run([*command, *line], check=True)


def packages_folder(home: Path) -> Path:
    """The folder of the environment's packages."""
    (folder,) = home.glob("lib/python*/site-packages")
    return folder
