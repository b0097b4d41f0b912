"""Handles what a running server process receives from outside: signals, and lines from its parent process.

SIGTERM and SIGINT stop it. SIGHUP: the files of --config as they are now, in force without a restart where
that can be. Everything is read and checked before anything changes; a wrong file changes nothing. Topics and
groups of their files are made and changed; limits, rates and subscriptions' defaults of both proxies, and the
log level, take effect at once. Other keys wait for the next start, and the log line names them.
A process that a native library crashes writes where its threads stood.

A component of `ddmq serve --processes` does not outlive its parent process. The parent holds the other end of
the component's standard input, which ends however the parent ends, kill -9 too. Otherwise the components of a
killed parent would keep the ports, and it could not be started again. The lines that the parent writes there
are passed to `on_line`.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import logging
import os
import signal
from collections.abc import Callable

import gevent
from gevent.socket import wait_read

from ddmq.server.admin import topics
from ddmq.server.config import (
    Configuration,
    find_declaring_source,
    load_folder,
    override_backend,
    resolved_values,
)
from ddmq.server.process.processes import unblock_hangup
from ddmq.server.process.server_process import ServerProcess
from ddmq.server.readable_secrets import warn_of_secrets
from ddmq_common.config import Reloaded, merge_live_values
from ddmq_common.errors import DdmqError

log = logging.getLogger("ddmq.server")
SERVE_LIVE = frozenset({"log_level", "drain_ms"})
RESTART_SECTIONS = ("rpc", "backend", "log", "delay", "security")
STDIN = 0


def install_signals(process: ServerProcess) -> None:
    """Make SIGTERM and SIGINT stop the process, and SIGHUP reload its configuration. If SIGINT was ignored
    when the process started, it stays ignored: then the parent passes Ctrl-C on. Signals of a crash are
    reported on standard error."""
    faulthandler.enable()
    gevent.signal_handler(signal.SIGTERM, process.request_stop)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        gevent.signal_handler(signal.SIGINT, process.request_stop)
    gevent.signal_handler(signal.SIGHUP, reload_configuration, process)
    unblock_hangup()


def reload_configuration(process: ServerProcess) -> None:
    """Read the configuration folder again and apply it. An error becomes one line in the log."""
    folder = process.config.folder
    if folder is None or process.backend is None:
        log.warning("nothing to reload: started without --config")
        return
    if process.security.certificates is not None:
        process.security.certificates.reload_files()
    try:
        fresh = override_backend(load_folder(folder), process.config.backend_flags)
        source = find_declaring_source(fresh, "topics")
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

    def record_change(section: str, reloaded: Reloaded) -> None:
        changed.extend(f"{section}.{key}" for key in reloaded.changed)
        waiting.extend(f"{section}.{key}" for key in reloaded.waiting)

    serve = _merge_serve(config, fresh)
    record_change("serve", serve)
    logging.getLogger().setLevel(serve.config.log_level.upper())
    config = dataclasses.replace(config, serve=serve.config, topics=fresh.topics, groups=fresh.groups)
    for section, proxy in (("consumer", process.consumer), ("producer", process.producer or process.sends)):
        if proxy is not None:
            reloaded = proxy.reconfigure(getattr(fresh, section))
            record_change(section, reloaded)
            config = dataclasses.replace(config, **{section: reloaded.config})
    before, now = resolved_values(config), resolved_values(fresh)
    for section in RESTART_SECTIONS:
        waiting.extend(
            f"{section}.{key}" for key, value in now[section].items() if before[section][key] != value
        )
    process.config = config
    return changed, waiting


def _merge_serve(config: Configuration, fresh: Configuration) -> Reloaded:
    """Merge the serve settings; flags of the command line override the file."""
    flags = {name: getattr(config.serve, name) for name in config.flags}
    return merge_live_values(config.serve, dataclasses.replace(fresh.serve, **flags), SERVE_LIVE)


def when_parent_ends(
    stop: Callable[[], None], on_line: Callable[[str], None], descriptor: int = STDIN
) -> None:
    """Call `on_line` with each line read from `descriptor`; at its end, the parent process has ended: call
    `stop`."""

    def follow() -> None:
        text = b""
        while more := _read_more(descriptor):
            *lines, text = (text + more).split(b"\n")
            for line in lines:
                on_line(line.decode())
        log.warning("the process that started this one has ended")
        stop()

    gevent.spawn(follow)


def _read_more(descriptor: int) -> bytes:
    wait_read(descriptor)
    return os.read(descriptor, 4096)
