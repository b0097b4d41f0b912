"""The waiting primitives of tasks; `net.sync` has the same names for threads.

The modules that tools/unasync.py translates are written with these, and with `threading.Lock`. A task never
waits while it has a lock, but for a Condition, which gives the lock away meanwhile. So the loop blocks on one
for no longer than another thread, which settles messages, needs for a few lines.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable

from ddmq_client import process
from ddmq_client.errors import ClientError
from ddmq_client.received import Message

AWAITS = True  # functions of the application may be async
INLINE = False  # what one caller alone waits for has a task of its own: it may outlive a cancelled caller
WORKERS = 16  # of a consumer, by default
Lock = threading.Lock  # of the components of a client; held for a few lines
CANCEL_S = 1.0  # for a cancelled handler to end
Handle = Callable[[list[Message]], Awaitable[int]]  # returns how often the application's handler raised


def now() -> float:
    """Return the event loop's time in seconds."""
    return asyncio.get_running_loop().time()


def get_clock() -> Callable[[], float]:
    """Return the function that gives the time for deadlines: that of the running event loop, in seconds."""
    return asyncio.get_running_loop().time


def current_worker() -> object:
    """Return the running task."""
    return asyncio.current_task()


def set_apart(work: Callable[[], object], amid: bool, locks: Iterable[Lock]) -> bool:
    """Return False: a task is never interrupted by code that waits for the same task.

    The version for threads runs `work` elsewhere if a signal handler must not run it.
    """
    return False


async def sleep(seconds: float) -> None:
    """Wait for this many seconds."""
    await asyncio.sleep(seconds)


async def await_result(answer: object) -> object:
    """Wait for the result of an application's function if it is awaitable; return the result."""
    return await answer if inspect.isawaitable(answer) else answer


def is_failure(error: BaseException) -> bool:
    """Return whether an exception from a handler is a failure of the handler, not a cancellation of this
    task."""
    if not isinstance(error, asyncio.CancelledError):
        return isinstance(error, Exception)
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


def ends_worker(error: BaseException) -> bool:
    """Return whether an error of a handler also ends the worker."""
    return not is_failure(error)


class EventLoopHome(process.Home):
    """The process and the event loop in which an object was first used, to detect others."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self._loop: asyncio.AbstractEventLoop | None = None

    def check_process(self) -> None:
        """Record a use in this process and event loop.

        Raises ClientError in a fork of the process that used the object first, and in another event loop.
        """
        super().check_process()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # of a plain function, which waits for nothing
            return
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise ClientError(
                f"this {self._what} was used in another event loop (each asyncio.run has its own);"
                " allowed: one event loop per client"
            )


Home = EventLoopHome


class Condition:
    """A `threading.Condition` for the tasks of one event loop; any thread may notify them."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the tasks that wait
        self._thread_id = 0
        self._waiting: deque[asyncio.Future[bool]] = deque()

    async def wait(self, timeout: float | None = None) -> bool:
        """Release the lock until notified, at most `timeout` seconds; return False after that time."""
        self._loop = loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        future: asyncio.Future[bool] = loop.create_future()
        self._waiting.append(future)
        timer = None if timeout is None else loop.call_later(timeout, _set_results, (future,), False)
        notified = False
        self._lock.release()
        try:
            notified = await future
        finally:
            if timer is not None:
                timer.cancel()
            self._lock.acquire()
            if not notified:
                self._leave(future)
        return notified

    def notify(self, count: int = 1) -> None:
        """Wake `count` of the waiting tasks; the caller holds the lock."""
        woken = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        if not woken or self._loop is None:
            return
        if threading.get_ident() == self._thread_id:
            _set_results(woken, True)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_set_results, woken, True)

    def notify_all(self) -> None:
        """Wake all waiting tasks; the caller holds the lock."""
        self.notify(len(self._waiting))

    def _leave(self, future: asyncio.Future[bool]) -> None:
        """End a wait that was not notified; pass on a notification that came at the same moment."""
        try:
            self._waiting.remove(future)
        except ValueError:
            self.notify()


def _set_results(futures: list[asyncio.Future[bool]] | tuple[asyncio.Future[bool]], notified: bool) -> None:
    for future in futures:
        if not future.done():
            future.set_result(notified)


class AsyncActivity:
    """A task that runs a component of a client in the background."""

    def __init__(self, work: Callable[[], Coroutine[None, None, object]], name: str) -> None:
        """Create an activity that runs `work` once it is started."""
        self._work = work
        self._name = name
        self._task: asyncio.Task[object] | None = None

    @property
    def is_alive(self) -> bool:
        """Return whether the activity is running."""
        return self._task is not None and not self._task.done()

    @property
    def is_current(self) -> bool:
        """Return whether the caller runs in the task of this activity."""
        return self._task is not None and self._task is asyncio.current_task(self._task.get_loop())

    def start(self) -> None:
        """Start the work in a task of its own."""
        self._task = asyncio.create_task(self._work(), name=self._name)

    def cancel(self) -> None:
        """Cancel the task at its next wait; does nothing if the caller is this task."""
        if self._task is not None and not self.is_current:
            self._task.cancel()

    def done_future(self) -> asyncio.Future[object] | None:
        """Return a future that is done when the task is; None if it is not running, or is the caller."""
        return self._task if self.is_alive and not self.is_current else None


async def join_activities(activities: Iterable[AsyncActivity], deadline: float) -> bool:
    """Wait until `deadline` for the activities other than the caller's, then cancel them.

    Returns whether all were completed without being cancelled.
    """
    waiting = [task for activity in activities if (task := activity.done_future()) is not None]
    if not waiting:
        return True
    _, late = await asyncio.wait(waiting, timeout=max(0.0, deadline - get_clock()()))
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=CANCEL_S)
    return not late


async def run_blocking(work: Callable[..., object], *args: object) -> None:
    """Run blocking `work` in a thread, so that the event loop is not blocked."""
    await asyncio.to_thread(work, *args)
