"""The waiting primitives of threads (greenlets, under gevent); `aio.sync` has the same names for tasks."""

from __future__ import annotations

import _thread
import sys
import threading
import time
from collections.abc import Callable, Iterable

from ddmq_client.received import Message

AWAITS = False  # functions of the application must be plain ones
INLINE = True  # what one caller alone waits for needs no thread of its own
WORKERS = 4  # of a consumer, unless told otherwise
Lock = threading.RLock  # it knows who has it: see `set_apart`
Condition = threading.Condition
now = time.monotonic
Handle = Callable[[list[Message]], int]  # returns how often the application's handler raised


def get_clock() -> Callable[[], float]:
    """Return the clock of deadlines: monotonic seconds."""
    return time.monotonic


def current_worker() -> object:
    """Return the identity of the running thread."""
    return threading.get_ident()


def set_apart(work: Callable[[], object], amid: bool, locks: Iterable[Lock]) -> bool:
    """Run `work` in a thread of its own if a signal handler cannot run it here; return whether it was.

    The signal may have interrupted this thread while it had one of the locks, or other work (`amid`), or
    gevent's hub. The thread is not started by `Thread.start`, which may be what was interrupted, with a lock
    of its own.
    """
    if not amid and not any(lock._is_owned() for lock in locks) and not _on_hub():  # type: ignore[attr-defined]
        return False
    _thread.start_new_thread(work, ())
    return True


def _on_hub() -> bool:
    """Return whether gevent's hub runs this, as it does a signal handler while all greenlets wait."""
    gevent = sys.modules.get("gevent")
    return gevent is not None and isinstance(gevent.getcurrent(), gevent.hub.Hub)


def sleep(seconds: float) -> None:
    """Wait for this many seconds."""
    time.sleep(seconds)


def await_result(answer: object) -> object:
    """Return the result of an application's function unchanged: it is never awaitable here."""
    return answer


def is_failure(error: BaseException) -> bool:
    """Return True: every error of a handler is a failure, also SystemExit and the like. If they ended the
    worker, its messages would have no handler.
    """
    return True


def ends_worker(error: BaseException) -> bool:
    """Return whether an error of a handler also ends the worker: the application ends its greenlet."""
    return type(error).__name__ == "GreenletExit"


class Activity:
    """One of the threads that a client consists of."""

    def __init__(self, work: Callable[[], object], name: str) -> None:
        """Store `work`, which runs once the activity is started."""
        self._thread = threading.Thread(target=work, name=name, daemon=True)

    @property
    def is_alive(self) -> bool:
        """Return whether the activity has been started and has not ended."""
        return self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Return whether the caller runs in this activity."""
        return self._thread is threading.current_thread()

    def start(self) -> None:
        """Start the work in a thread of its own."""
        self._thread.start()

    def cancel(self) -> None:
        """A thread ends by itself only: when what it waits for is notified, or its connection closed."""

    def join(self, deadline: float) -> None:
        """Wait for its end until then, unless it is the one that asks, or was not started."""
        if self.is_alive and not self.is_current:
            self._thread.join(max(0.0, deadline - time.monotonic()))


def wait_ended(activities: Iterable[Activity], deadline: float) -> bool:
    """Wait until the deadline for all but the one that asks; whether they have ended."""
    waiting = list(activities)
    for activity in waiting:
        activity.join(deadline)
    return not any(activity.is_alive for activity in waiting if not activity.is_current)


def off_loop(work: Callable[..., object], *args: object) -> None:
    """Do what blocks: here, threads are there for that."""
    work(*args)
