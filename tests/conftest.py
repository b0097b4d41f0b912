"""What holds for every test."""

from __future__ import annotations

from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Captured output with lone surrogates cannot travel from a worker process: it is written in escapes."""
    report = yield
    report.sections = [
        (title, text.encode("utf-8", "backslashreplace").decode()) for title, text in report.sections
    ]
    return report
