"""A real Kafka broker for tests: one a run, shared by all workers, gone with the run.

DDMQ_KAFKA=HOST:PORT uses one that runs. Where there is no Java at all the tests are skipped, and say so.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import secrets
import shlex
import subprocess
import tempfile
from pathlib import Path

import pytest

from ddmq.trial.cluster import Ports, TrialCluster, free_ports
from ddmq.trial.jars import java
from ddmq_common.errors import ConfigError

_names = itertools.count(1)
_run = secrets.token_hex(3)
# Ends the broker when the run it belongs to has ended, however that was.
_WATCH = (
    "while kill -0 {owner} 2>/dev/null; do sleep 1; done; kill -9 $(cat {pids}) 2>/dev/null; rm -rf {folder}"
)


def broker() -> str:
    """HOST:PORT of the run's broker; started by whoever asks first."""
    address = os.environ.get("DDMQ_KAFKA")
    if address:
        return address
    try:
        java()
    except ConfigError as error:
        pytest.skip(f"NO KAFKA IS TESTED: {error}")
    owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    folder = Path(tempfile.gettempdir()) / f"ddmq-kafka-{owner}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cluster = TrialCluster(folder)
        if not cluster.brokers:
            cluster.make([Ports(*free_ports(2))])
            try:
                cluster.start()
            finally:
                _end_with(owner, folder)  # also if it is not ready in time
    return cluster.bootstrap


def _end_with(owner: int, folder: Path) -> None:
    quoted = shlex.quote(str(folder))
    watch = _WATCH.format(owner=owner, pids=f"{quoted}/broker-*/pid", folder=quoted)
    subprocess.Popen(["/bin/sh", "-c", watch], start_new_session=True, stdin=subprocess.DEVNULL)


def fresh_name() -> str:
    """A name nobody has used on the broker: for a namespace, or before the names of topics."""
    return f"t{_run}{os.getpid()}-{next(_names)}"


def delete_topics(name: str) -> None:
    """Those of a fresh name: with thousands of partitions the broker of the run would do little else."""
    from confluent_kafka.admin import AdminClient  # here: every test's conftest reads this file

    admin = AdminClient({"bootstrap.servers": broker()})
    mine = [topic for topic in admin.list_topics(timeout=30).topics if topic.startswith(f"{name}.")]
    if mine:
        for deleted in admin.delete_topics(mine, request_timeout=30).values():
            deleted.exception(30)
