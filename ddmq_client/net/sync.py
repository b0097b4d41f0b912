"""The waiting primitives of threads (greenlets, under gevent); `aio.sync` has the same names for tasks."""

from __future__ import annotations

import _thread
import sys
import threading
import time
from collections.abc import Callable, Iterable

from ddmq_client import process
from ddmq_client.received import Message

AWAITS = False  # functions of the application must be plain ones
INLINE = True  # what one caller alone waits for needs no thread of its own
WORKERS = 4  # of a consumer, by default
Lock = threading.RLock  # it knows who has it: see `set_apart`
Condition = threading.Condition
Home = process.Home  # the process in which an object was first used
now = time.monotonic
Handle = Callable[[list[Message]], int]  # returns how often the application's handler raised


def get_clock() -> Callable[[], float]:
    """Return the function that gives the time for deadlines: monotonic seconds."""
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
    """Return whether this runs on gevent's hub, like a signal handler while all greenlets wait."""
    gevent = sys.modules.get("gevent")
    return gevent is not None and isinstance(gevent.getcurrent(), gevent.hub.Hub)


def sleep(seconds: float) -> None:
    """Wait for this many seconds."""
    time.sleep(seconds)


def await_result(answer: object) -> object:
    """Return the result of an application's function unchanged: it is never awaitable here."""
    return answer


def is_failure(error: BaseException) -> bool:
    """Return True: every exception from a handler is a failure, including SystemExit.

    If it ended the worker, the worker's messages would have no handler.
    """
    return True


def ends_worker(error: BaseException) -> bool:
    """Return whether an error of a handler also ends the worker: the application ends its greenlet."""
    return type(error).__name__ == "GreenletExit"


class Activity:
    """A thread that runs a component of a client in the background."""

    def __init__(self, work: Callable[[], object], name: str) -> None:
        """Store `work`, which runs once the activity is started."""
        self._thread = threading.Thread(target=work, name=name, daemon=True)

    @property
    def is_alive(self) -> bool:
        """Return whether the activity is running."""
        return self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Return whether the caller runs in the thread of this activity."""
        return self._thread is threading.current_thread()

    def start(self) -> None:
        """Start the work in a thread of its own."""
        self._thread.start()

    def cancel(self) -> None:
        """Do nothing: a thread cannot be cancelled.

        It ends when its wait is notified, or its connection is closed.
        """

    def join(self, deadline: float) -> None:
        """Wait until the thread ends, at most until `deadline`.

        Returns at once if the caller is that thread, or it was never started.
        """
        if self.is_alive and not self.is_current:
            self._thread.join(max(0.0, deadline - time.monotonic()))


def join_activities(activities: Iterable[Activity], deadline: float) -> bool:
    """Wait until `deadline` for the activities other than the caller's; return whether they have ended."""
    waiting = list(activities)
    for activity in waiting:
        activity.join(deadline)
    return not any(activity.is_alive for activity in waiting if not activity.is_current)


def run_blocking(work: Callable[..., object], *args: object) -> None:
    """Run blocking `work` in the calling thread, which may block."""
    work(*args)
