"""Dramatiq's own tests, those that concern every broker, with a DdmqBroker in place of the others.

They come from the source distribution of the locked version and are not kept here. Without a package index
the test is skipped. dramatiq_suite/selection.py lists which of them do not run, with the reasons.
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
from tests.scenarios.real_server import PARTS, running

PASSED_MIN = 105


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
    files = [f"{PACKAGE}/{name}" for name in FILES]
    options = ["-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider", "-q", "--timeout", "120"]
    with running(tmp_path / "server") as server:
        environment[ADDRESSES] = ",".join(server.address(part) for part in PARTS)
        result = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *files],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert result.returncode == 0, result.stdout[-8_000:] + result.stderr[-2_000:]
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed is not None
    assert int(passed[1]) >= PASSED_MIN


def test_every_test_that_is_skipped_has_its_reason() -> None:
    assert [
        test for test, reason in SKIPPED.items() if not reason.strip() or not test.startswith("test_")
    ] == []
