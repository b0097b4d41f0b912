"""Find uv, and with pyenv and uv the Pythons of a machine.

A missing Python is fetched by uv where the network allows it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ANSWER_S = 60.0
FETCH_S = 600.0
# Copies: through a hard link a change in one environment would reach the cache and all others.
UV_VARIABLES = {"UV_LINK_MODE": "copy", "UV_NO_PROGRESS": "1", "UV_NO_CONFIG": "1"}


class Interpreter(NamedTuple):
    """A Python, and its version with the patch level."""

    version: str
    path: Path


def find_interpreter(request: str, *, fetch: bool = True) -> Interpreter | None:
    """Return the Python of a version such as 3.12, or at a path; None if there is none.

    pyenv comes first, because uv gives up at a pyenv shim whose version is not the active one.
    """
    if os.sep in request:
        return inspect_interpreter(Path(request))
    if prefix := answer_of("pyenv", "prefix", request):
        return inspect_interpreter(Path(prefix, "bin", "python"))
    search = ("python", "find", "--system", "--no-project", "--no-python-downloads", request)
    if path := answer_of(find_uv(), *search):
        return inspect_interpreter(Path(path))
    if fetch and answer_of(find_uv(), "python", "install", "--quiet", request, within_s=FETCH_S) is not None:
        return find_interpreter(request, fetch=False)
    return None


def inspect_interpreter(path: Path) -> Interpreter | None:
    """Return the interpreter at a path, or None if it does not run."""
    version = answer_of(str(path), "-c", "import platform; print(platform.python_version())")
    return Interpreter(version, path) if version else None


def answer_of(*command: str, within_s: float = ANSWER_S) -> str | None:
    """Return what a command prints, or None if it is missing, fails, or takes too long."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=within_s)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def find_uv() -> str:
    """Return the path of uv, of this environment or of the machine; exit with a line if there is none."""
    in_environment = Path(sys.executable).with_name("uv")
    uv = str(in_environment) if in_environment.exists() else shutil.which("uv")
    if uv is None:
        sys.exit("wheels: uv is missing; run: make wheels")
    return uv


def run_uv(*arguments: str, variables: Mapping[str, str] = os.environ) -> None:
    """Run uv. Raises CalledProcessError; its stderr says what is wrong."""
    environment = {**variables, **UV_VARIABLES}
    command = [find_uv(), *arguments, "--quiet"]
    subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
