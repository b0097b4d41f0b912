"""The feature level of an installation: what its processes may use, because all of them understand it. Pure.

Each version of ddmq supports the levels from 1 to LEVEL. A process states its highest level when it joins.
The level of the installation is part of the replicated table (table.py) and never falls:

| event                                                        | effect                                    |
|--------------------------------------------------------------|-------------------------------------------|
| `begin`                                                      | the level is the one that the event states |
| `level` above the level that lists all processes of the table | the level is the one of the event         |
| any other `level`                                            | none                                      |
| `join` that states less than the level                       | none: the process gets no queues          |

The oldest member writes the `level` event, because it has read the `join` of every other member. (If there is
no member, any process does.) Before, it records the level beside the cluster's id in the settings: from then
on no process that supports less starts. A version that knows nothing of levels compares the whole record with
the id, and does not start either.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

UNSTATED = 1  # the level of a version that knows nothing of levels
LEVEL = 2  # the highest level of this version; docs/formats-kafka.md says what each level permits
LANES_LEVEL = 2  # from here on a process uses all its transactional ids, which others then take over
NUMBERS_LEVEL = 2  # from here on numbered sends may be stored once
CLUSTER_SETTING = "kafka/cluster"
_RECORD = re.compile(r"(?P<id>.*?)(?: \(feature level (?P<level>[1-9]\d{0,8})\))?", re.DOTALL)


class ClusterRecord(NamedTuple):
    """The value of the setting `kafka/cluster`: the cluster to which the settings belong, and the level."""

    cluster_id: str
    level: int = UNSTATED


def parse_cluster_record(value: bytes) -> ClusterRecord:
    """Decode the value of the setting `kafka/cluster`."""
    match = _RECORD.fullmatch(value.decode(errors="replace"))
    assert match is not None  # the pattern matches every text
    return ClusterRecord(match["id"], int(match["level"] or UNSTATED))


def format_cluster_record(record: ClusterRecord) -> bytes:
    """Encode the value of the setting `kafka/cluster`; the lowest level is not stated."""
    suffix = f" (feature level {record.level})" if record.level > UNSTATED else ""
    return f"{record.cluster_id}{suffix}".encode()


def recorded_level(settings: Mapping[str, bytes], own: int) -> int:
    """Return the level in the settings. If nothing is recorded there, the installation is new."""
    value = settings.get(CLUSTER_SETTING)
    return own if value is None else parse_cluster_record(value).level


def find_level_error(level: int, supported: int) -> str:
    """Return why a process that supports levels up to `supported` cannot take part, or ""."""
    if level <= supported:
        return ""
    if supported < LEVEL:
        return (
            f"the installation is at feature level {level}, and feature_level is {supported}; a level never"
            f" falls; allowed: 0, or {level} or more"
        )
    return (
        f"the installation is at feature level {level}, and this version of ddmq supports levels up to"
        f" {supported}; start a version that supports level {level}"
    )


def find_common_level(processes: Collection[str], stated: Mapping[str, int], own: int) -> int:
    """Return the highest level that all processes and the caller support.

    `stated`: the level of each process that stated one.
    """
    return min([own, *(stated.get(process, UNSTATED) for process in processes)])
