"""Handles what a running server process receives from outside: signals, and lines from its parent process.

SIGTERM and SIGINT stop it. SIGHUP: the files of --config as they are now, in force without a restart where
that can be. Everything is read and checked before anything changes; a wrong file changes nothing. Topics and
groups of their files are made and changed; limits, rates and subscriptions' defaults of both proxies, and the
log level, take effect at once. Other keys wait for the next start, and the log line names them.

A part of `ddmq serve --processes` does not outlive the process that started it. That one holds the other end
of the part's standard input: it ends however its holder ends, kill -9 too. Else the parts of one that was
killed would keep the ports, and it could not be started again. What it writes there are lines, for `hear`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
from collections.abc import Callable

import gevent
from gevent.socket import wait_read

from ddmq.server.admin import topics
from ddmq.server.config import Configuration, file_of_part, load_folder, over_backend, resolved_values
from ddmq.server.process.parts import ServerProcess
from ddmq.server.process.processes import let_hangup
from ddmq.server.readable_secrets import warn_of_secrets
from ddmq_common.config import Reloaded, merge_live_values
from ddmq_common.errors import DdmqError

log = logging.getLogger("ddmq.server")
SERVE_LIVE = frozenset({"log_level", "drain_ms"})
RESTART_PARTS = ("rpc", "backend", "log", "delay")
STDIN = 0


def install_signals(process: ServerProcess) -> None:
    """Make SIGTERM and SIGINT stop the process, and SIGHUP reload its configuration. If SIGINT was ignored
    when the process started, it stays ignored: then the parent passes Ctrl-C on."""
    gevent.signal_handler(signal.SIGTERM, process.request_stop)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        gevent.signal_handler(signal.SIGINT, process.request_stop)
    gevent.signal_handler(signal.SIGHUP, reload_configuration, process)
    let_hangup()


def reload_configuration(process: ServerProcess) -> None:
    """Read the configuration folder again and apply it. An error becomes one line in the log."""
    folder = process.config.folder
    if folder is None or process.backend is None:
        log.warning("nothing to reload: started without --config")
        return
    try:
        fresh = over_backend(load_folder(folder), process.config.backend_flags)
        source = file_of_part(fresh, "topics")
        names = topics.apply_file(process.backend, process.clock, fresh.topics.topics, source)
        changed, waiting = _apply(process, fresh)
        process.declare_groups(fresh)
        warn_of_secrets(fresh)
    except (DdmqError, TimeoutError) as error:
        log.error("not reloaded", extra={"error": str(error)})
        return
    fields = {"topics": ",".join(names) or "none changed", "changed": ",".join(changed) or "nothing else"}
    if waiting:
        fields["at_the_next_start"] = ",".join(waiting)
    log.info("reloaded", extra=fields)


def _apply(process: ServerProcess, fresh: Configuration) -> tuple[list[str], list[str]]:
    """Apply the configuration `fresh`; return the keys that took effect, and those that wait for the next
    start."""
    config, changed, waiting = process.config, list[str](), list[str]()

    def record_change(part: str, reloaded: Reloaded) -> None:
        changed.extend(f"{part}.{key}" for key in reloaded.changed)
        waiting.extend(f"{part}.{key}" for key in reloaded.waiting)

    serve = _merge_serve(config, fresh)
    record_change("serve", serve)
    logging.getLogger().setLevel(serve.config.log_level.upper())
    config = dataclasses.replace(config, serve=serve.config, topics=fresh.topics, groups=fresh.groups)
    for part, proxy in (("consumer", process.consumer), ("producer", process.producer or process.sends)):
        if proxy is not None:
            reloaded = proxy.reconfigure(getattr(fresh, part))
            record_change(part, reloaded)
            config = dataclasses.replace(config, **{part: reloaded.config})
    before, now = resolved_values(config), resolved_values(fresh)
    for part in RESTART_PARTS:
        waiting.extend(f"{part}.{key}" for key, value in now[part].items() if before[part][key] != value)
    process.config = config
    return changed, waiting


def _merge_serve(config: Configuration, fresh: Configuration) -> Reloaded:
    """Merge the serve settings; flags of the command line override the file."""
    flags = {name: getattr(config.serve, name) for name in config.flags}
    return merge_live_values(config.serve, dataclasses.replace(fresh.serve, **flags), SERVE_LIVE)


def when_parent_ends(stop: Callable[[], None], hear: Callable[[str], None], descriptor: int = STDIN) -> None:
    """Call `hear` with each line that is read from `descriptor`, and call `stop` once at its end, which means
    that the parent process has ended."""

    def follow() -> None:
        text = b""
        while more := _read_more(descriptor):
            *lines, text = (text + more).split(b"\n")
            for line in lines:
                hear(line.decode())
        log.warning("the process that started this one has ended")
        stop()

    gevent.spawn(follow)


def _read_more(descriptor: int) -> bytes:
    wait_read(descriptor)
    return os.read(descriptor, 4096)
