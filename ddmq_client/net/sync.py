"""What threads wait with (greenlets, under gevent); `aio.sync` has the same names for tasks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

Condition = threading.Condition


def clock() -> Callable[[], float]:
    """The clock of deadlines: monotonic seconds."""
    return time.monotonic


def me() -> object:
    """The thread that runs."""
    return threading.get_ident()
