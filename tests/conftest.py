"""What holds for every test.

* A test over its time limit fails and says where every greenlet stood; its worker goes on. (The limit's own
  "thread" method ends the worker with the servers it started still running, its "signal" method fails the
  hub instead of the test while a test waits in gevent.)
* Files of tests are shared out whole (`--dist loadgroup`, a group a file); all of tests/spark is one group,
  so that a run starts one Java machine, and has it running from the beginning to the end of that group.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import gevent
import gevent.util
import pytest

FRAMES = 12  # of each stack that are shown
AGAIN_S = 60.0  # a test that goes on after its limit, or hangs in its clean-up, is failed again
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files, and tests/spark as a whole, are what workers are given."""
    for item in items:
        path = item.path.relative_to(HERE)
        item.add_marker(pytest.mark.xdist_group(path.parts[0] if path.parts[0] == "spark" else str(path)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Captured output with lone surrogates cannot travel from a worker process: it is written in escapes."""
    report = yield
    report.sections = [
        (title, text.encode("utf-8", "backslashreplace").decode()) for title, text in report.sections
    ]
    return report


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """The limit of `settings`, as the module's text says."""
    main = gevent.getcurrent()

    def over(_number: int, _frame: FrameType | None) -> None:
        where = "\n".join(gevent.util.format_run_info(limit=FRAMES))
        error = pytest.fail.Exception(f"over its time limit of {settings.timeout:g} s\n{where}", pytrace=True)
        if gevent.getcurrent() is main:
            raise error
        gevent.get_hub().loop.run_callback(main.throw, error)

    before = signal.signal(signal.SIGALRM, over)

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]  # what pytest-timeout calls afterwards
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, AGAIN_S)
    return True
