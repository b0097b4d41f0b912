"""Each mode of `ddmq move` runs its step of the move."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import create_autospec

import pytest
from click.testing import CliRunner

from ddmq.cli import move as module
from ddmq.move.runs import MoveReport, MoveRun


@pytest.mark.parametrize(
    ("flags", "step"),
    [
        ((), "copy"),
        (("--follow",), "copy"),
        (("--dry-run",), "plan_move"),
        (("--finish",), "finish_move"),
        (("--verify",), "verify_copies"),
    ],
)
def test_each_mode_runs_its_step(monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], step: str) -> None:
    run: Any = create_autospec(MoveRun, instance=True)
    report = MoveReport(step, "copied", topics=0, groups=0)
    getattr(run, step).return_value = report

    @contextmanager
    def opened(*_: object, make: bool) -> Iterator[Any]:
        assert make is (step != "plan_move")
        yield run

    monkeypatch.setattr(module, "_open_run", opened)
    answer = CliRunner().invoke(module.move, ["file_log:a", "file_log:b", "--json", *flags])
    assert answer.exit_code == 0, answer.output
    getattr(run, step).assert_called_once()
