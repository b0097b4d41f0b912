"""SIGHUP that comes while a process starts waits until it can be answered; else it would end the process."""

from __future__ import annotations

import signal


def hold_hangup() -> None:
    """From now on, here and in processes that are started."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def let_hangup() -> None:
    """Let hang-ups through again; one that came meanwhile comes now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
