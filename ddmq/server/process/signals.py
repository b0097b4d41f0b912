"""The signals of a server process."""

from __future__ import annotations

import signal

import gevent

from ddmq.server.process.hangup import let_hangup
from ddmq.server.process.parts import ServerProcess
from ddmq.server.process.reload import reload


def install_signals(process: ServerProcess) -> None:
    """SIGTERM and SIGINT stop the process, SIGHUP reads its configuration again.

    A SIGINT that was ignored when we were started stays so: our parent passes Ctrl-C on.
    """
    gevent.signal_handler(signal.SIGTERM, process.request_stop)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        gevent.signal_handler(signal.SIGINT, process.request_stop)
    gevent.signal_handler(signal.SIGHUP, reload, process)
    let_hangup()
