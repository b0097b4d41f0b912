"""Dramatiq's own tests, those that concern every broker, with a DdmqBroker in place of the others.

They come from the source distribution of the locked version and are not kept here. Without a package index
the test is skipped. dramatiq_suite/selection.py lists which of them do not run, with the reasons.

Many of them sleep and then look, as is right for a broker in memory. On a busy machine such a test may fail,
so those that failed run once more, alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.dramatiq_suite.fixtures import ADDRESSES
from tests.interop.dramatiq_suite.selection import FILES, SKIPPED
from tests.interop.dramatiq_suite.sources import PACKAGE, NotAvailable, prepare_tests
from tests.scenarios.real_server import COMPONENTS, running

PASSED_MIN = 105
REPEATED_MAX = 5
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::\S+)", re.MULTILINE)


def run_tests(folder: Path, environment: dict[str, str], *tests: str) -> subprocess.CompletedProcess[str]:
    """Run some of Dramatiq's tests in a process of their own."""
    options = ["-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider", "-q", "--timeout", "120"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_dramatiqs_own_tests_pass_on_our_broker(tmp_path: Path) -> None:
    folder = tmp_path / "suite"
    folder.mkdir()
    try:
        environment = os.environ | prepare_tests(folder)
    except NotAvailable as error:
        pytest.skip(f"Dramatiq's source distribution cannot be fetched: {error}")
    with running(tmp_path / "server") as server:
        environment[ADDRESSES] = ",".join(server.address(component) for component in COMPONENTS)
        result = run_tests(folder, environment, *(f"{PACKAGE}/{name}" for name in FILES))
        report = result.stdout[-8_000:] + result.stderr[-2_000:]
        failed = FAILED.findall(result.stdout)
        assert len(failed) <= REPEATED_MAX, report
        assert bool(failed) is (result.returncode != 0), report
        if failed:
            second_run = run_tests(folder, environment, *failed)
            assert second_run.returncode == 0, second_run.stdout[-8_000:]
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed is not None, report
    assert int(passed[1]) + len(failed) >= PASSED_MIN


def test_every_test_that_is_skipped_has_its_reason() -> None:
    assert [
        test for test, reason in SKIPPED.items() if not reason.strip() or not test.startswith("test_")
    ] == []
