"""Builds the wheel of ddmq-client: `python tools/client_wheel.py [FOLDER]`, by default into dist/.

The package is copied beside packaging/client/pyproject.toml first, so nothing is left behind in the tree. The
modules of the server that the test broker needs come with it (tools/server_copy.py).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tools.server_copy import copy_server  # noqa: E402 - it also runs as a script

EXCLUDED_FILES = shutil.ignore_patterns("__pycache__")


def copy_client(source: Path) -> None:
    """Copy what the wheel is built from to `source`, which must not exist."""
    shutil.copytree(ROOT / "packaging" / "client", source)
    for name in ("LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "ddmq_client", source / "ddmq_client", ignore=EXCLUDED_FILES)
    copy_server(source / "ddmq_client" / "testing" / "_server")


def build(folder: Path) -> Path:
    """Build the wheel into `folder`; return its path."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"
        copy_client(source)
        built = Path(scratch) / "built"
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "-w",
            str(built),
            str(source),
        ]
        subprocess.run(command, check=True)
        (wheel,) = built.glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, folder))


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"))
