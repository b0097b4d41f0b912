"""What holds for every test.

* A test over its time limit fails and says where every greenlet stood; its worker goes on. (The limit's own
  "thread" method ends the worker with the servers it started still running, its "signal" method fails the
  hub instead of the test while a test waits in gevent.)
* A test begins with a turn of the hub. Its loop's clock stands still meanwhile, so that after thirty seconds
  of tests without gevent a wait of thirty seconds would be over as it begins.
* An example of Hypothesis has no time limit of its own: on a busy machine it is exceeded by chance.
* Several workers share the files as ByFile says, whatever `--dist` names; each reads every file first.
  `--part 1/4` is one of four processes that do not, and share the files by their names.
* A test with the mark `kafka`, or in KAFKA_FOLDER, needs a real broker, which is started for it. What
  tests/support/not_on_kafka.py lists is skipped on that engine.
* A test is slow that carries that mark or `long`, or lies in one of SLOW_FOLDERS. A run of the others
  (`-m "not slow"`) does not read those folders, tries fewer examples of Hypothesis, fails a test that
  starts a process, and has its temporary folders in memory, so that no sync waits for a disk that others use.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any
from zlib import crc32

import gevent
import gevent.util
import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from ddmq_common import compiled
from tests.support.installations import engine, installation  # noqa: F401 - the same
from tests.support.not_on_kafka import reason as not_on_kafka
from tests.support.rig import rigs_are_closed  # noqa: F401 - for every test

FRAMES = 12  # of each stack that are shown
REPEAT_FAILURE_S = 60.0  # a test that goes on after its limit, or hangs in its clean-up, is failed again
SPARK = "tests/spark/"
# Those with clusters of their own come before the servers that stay until the end of a run.
SLOWEST = (
    "tests/service/kafka/", SPARK, "tests/console/", "tests/scenarios/test_bench", "tests/crash/",
    "tests/scenarios/",
)  # fmt: skip

ONE_BY_ONE = "tests/scenarios/test_bench_smoke.py"  # shares nothing between its tests, and is the longest
KAFKA_FOLDER = "service/kafka"
SLOW_FOLDERS = (
    "console", "crash", "interop", "recorded", "scenarios", "spark", "service/cli", "service/hostile",
    KAFKA_FOLDER,
)  # fmt: skip
HERE = Path(__file__).parent
MEMORY, MEMORY_BYTES_MIN = Path("/dev/shm"), 2_000_000_000
_SLOW_PATHS = tuple(f"{HERE / folder}/" for folder in SLOW_FOLDERS)
PROCESS_STARTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}

settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", settings.get_profile("suite"), max_examples=20)
settings.load_profile("suite")


def _run_order(file: str) -> int:
    """Return the position of a file's tests in the run."""
    return next((order for order, folder in enumerate(SLOWEST) if file.startswith(folder)), len(SLOWEST))


def _is_fast(config: pytest.Config) -> bool:
    return "not slow" in config.option.markexpr


def _lies_in_slow_folder(path: Path) -> bool:
    return f"{path}/".startswith(_SLOW_PATHS)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="1/1", metavar="I/N", help="the files of the Ith of N processes")
    parser.addoption("--update-transcripts", action="store_true", help="write what commands print now")


def _is_in_share(path: Path, share: str) -> bool:
    number, count = map(int, share.split("/"))
    return crc32(path.name.encode()) % count == number - 1


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if _is_fast(config) and _lies_in_slow_folder(collection_path):
        return True
    is_file = collection_path.suffix == ".py"
    return True if is_file and not _is_in_share(collection_path, config.option.part) else None


def pytest_configure(config: pytest.Config) -> None:
    if _is_fast(config):
        settings.load_profile("fast")
        config.pluginmanager.register(NoProcesses())
        if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    gevent.sleep(0)
    if compiled.STATE.modules and item.get_closest_marker("interpreted"):
        pytest.skip("replaces a part of a compiled class: run it with DDMQ_COMPILED=0")


class NoProcesses:
    """Fails a test that starts a process, though code between catches every error."""

    def __init__(self) -> None:
        self._watching = False
        self._started: list[str] = []
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in PROCESS_STARTS and self._watching:
            self._started.append(f"{event}{arguments[:2]}")
            raise PermissionError(self._describe_start())

    def _describe_start(self) -> str:
        return f"a fast test starts a process (mark it slow): {self._started[0]}"

    def _watch(self) -> Generator[None, Any, Any]:
        self._started.clear()
        self._watching = True
        try:
            return (yield)
        finally:
            self._watching = False
            if self._started:
                pytest.fail(self._describe_start(), pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        return (yield from self._watch())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        return (yield from self._watch())


def _skip_on_kafka(item: pytest.Item) -> None:
    """Skip a test on Kafka if not_on_kafka.py gives a reason: this engine cannot do what the test checks. The
    reason is the text of the skip, and docs/kafka.md lists them all (tools/promises.py)."""
    if (
        isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and "kafka" in item.callspec.params.values()
    ):
        reason = not_on_kafka(item.path.relative_to(HERE).as_posix(), item.name)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason.text))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slowest come first, so that no worker is left alone with them at the end."""
    for item in items:
        if item.path.is_relative_to(HERE / KAFKA_FOLDER):
            item.add_marker(pytest.mark.kafka)
        if item.get_closest_marker("long") or _lies_in_slow_folder(item.path):
            item.add_marker(pytest.mark.slow)
        _skip_on_kafka(item)
    items.sort(key=lambda item: _run_order(item.nodeid))


def pytest_collection_finish() -> None:
    """Thousands of tests that were collected are not looked at again by every collection of garbage."""
    gc.collect()
    gc.freeze()


class ByFile(LoadScopeScheduling):
    """Files are shared out whole but for ONE_BY_ONE; all of tests/spark together, for one Java machine."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file == ONE_BY_ONE:
            return nodeid
        return SPARK if file.startswith(SPARK) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    config.option.loadscopereorder = False
    return ByFile(config, log)


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
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, REPEAT_FAILURE_S)
    return True
