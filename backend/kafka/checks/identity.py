"""Which cluster an installation belongs to: offsets, progress and delays of one mean nothing on another.

The id is kept twice: in a file of the local data directory (its delay stores follow that cluster's log), and
in the settings topic, which a copy of the topics to another cluster takes along.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from backend.port import Backend
from backend.records import CommitBatch
from ddmq_common.clock import Clock
from ddmq_common.errors import ConfigError, DdmqError

log = logging.getLogger(__name__)
FILE = "kafka-cluster"  # in the data directory
SETTING = "kafka/cluster"
WAIT_S = 10.0


def kept_in(data_dir: Path) -> str:
    """The id of the cluster that the directory belongs to; empty when it belongs to none."""
    try:
        return (data_dir / FILE).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def check_directory(data_dir: Path, cluster_id: str, bootstrap: str) -> None:
    """Refuse a directory that belongs to another cluster. Raises ConfigError."""
    kept = kept_in(data_dir)
    if kept and kept != cluster_id:
        raise ConfigError(
            f"{data_dir.absolute()} belongs to Kafka cluster {kept}, and {bootstrap} is cluster {cluster_id}:"
            " set bootstrap to that cluster's brokers, or choose another data directory;"
            " if that cluster is gone for good, move this directory away"
        )


def check_settings(kept: bytes | None, topic: str, cluster_id: str, bootstrap: str) -> None:
    """Refuse settings that belong to another cluster. Raises ConfigError."""
    if kept is not None and kept.decode() != cluster_id:
        raise ConfigError(
            f"the topic {topic} belongs to Kafka cluster {kept.decode()}, and {bootstrap} is cluster"
            f" {cluster_id}: the topics were copied, and offsets and progress in them are the other"
            " cluster's; set bootstrap to its brokers, or choose another namespace for this one"
        )


def keep(backend: Backend, clock: Clock, data_dir: Path | None, cluster_id: str) -> None:
    """Write down what nobody has yet. Raises OSError when the directory cannot be written."""
    if data_dir is not None and not kept_in(data_dir):
        making = data_dir / f"{FILE}.{os.getpid()}.making"
        with making.open("w", encoding="utf-8") as file:
            file.write(f"{cluster_id}\n")
            file.flush()
            os.fsync(file.fileno())
        making.replace(data_dir / FILE)
    if backend.setting(SETTING) is None:
        try:
            batch = CommitBatch(settings={SETTING: cluster_id.encode()})
            backend.commit(batch, clock.monotonic() + WAIT_S).wait(WAIT_S)
        except (DdmqError, TimeoutError) as error:  # the next start does it
            log.warning("the cluster's id is not in the settings yet", extra={"reason": str(error)})
