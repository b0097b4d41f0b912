"""The result of one check of `ddmq doctor`."""

from __future__ import annotations

from typing import NamedTuple

OK, WARNING, FAILED = "ok", "warning", "failed"


class CheckResult(NamedTuple):
    """The outcome of one check of `ddmq doctor`. `summary`: its result, in words."""

    check: str
    status: str
    summary: str
    remedy: str = ""
