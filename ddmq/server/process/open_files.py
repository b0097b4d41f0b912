"""Open files of a server process: what is left for clients once log, stores and the admin API have theirs.

A client that takes the last one would keep the log from beginning a segment, so connections are bounded by
what the machine's limit leaves, not by what the configuration hopes for.
"""

from __future__ import annotations

import logging
import resource
from dataclasses import replace
from typing import NamedTuple

from ddmq_rpc.traffic import RpcLimits

log = logging.getLogger("ddmq.server")
RESERVE_MIN, RESERVE_MAX = 128, 2_048  # of log, stores, admin API and push; in between half of all


class OpenFilesShare(NamedTuple):
    """The division of the limit of open files. `connections`: for each Thrift server; `reserve`: for
    everything else."""

    connections: int
    reserve: int


def share_of_limit(open_files: int, servers: int, connections_max: int) -> OpenFilesShare:
    """Return how many connections, at most `connections_max`, each of the `servers` may have within the limit
    of open files; at least one."""
    reserve = min(max(open_files // 2, RESERVE_MIN), RESERVE_MAX)
    available = max((open_files - reserve) // max(servers, 1), 1)
    return OpenFilesShare(min(connections_max, available), reserve)


def open_files_max() -> int:
    """Return how many files a server may hold open: the hard limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return hard if hard != resource.RLIM_INFINITY else 1 << 30


def raise_open_files() -> None:
    """Raise the soft limit of open files and sockets to the hard limit, because the usual 1,024 are soon used
    up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def limits_within(limits: RpcLimits, servers: int, *, configured: bool) -> RpcLimits:
    """Return the limits, with fewer connections if the limit of open files requires it.

    A reduction is logged: as a warning if the number is `configured`, else for information, because a user
    who asked for no number has nothing to repair.
    """
    share = share_of_limit(open_files_max(), servers, limits.connections_max)
    if share.connections == limits.connections_max:
        return limits
    facts = {
        "connections_max": share.connections,
        "configured" if configured else "default": limits.connections_max,
        "open_files": open_files_max(),
        "reserve": share.reserve,
        "run": f"ulimit -n {servers * limits.connections_max + RESERVE_MAX}",
    }
    if configured:
        log.warning("fewer connections than configured: open files are limited", extra=facts)
    else:
        log.info("the limit of open files determines how many clients may connect", extra=facts)
    return replace(limits, connections_max=share.connections)
