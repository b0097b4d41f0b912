"""Rounds over processes of load say what went wrong: a load that ended by itself, or that nothing goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.kit.command import PrintLine
from tests.crash.kit.kill_run import judged
from tests.crash.kit.process_rounds import ProcessRounds
from tests.scenarios.real_server import RealServer
from tests.support.waits import until

pytestmark = pytest.mark.slow
LIVES, DIES = "json.tool", "no_such_load"  # the first reads its standard input to the end


class NoServer(RealServer):
    """A victim without a process."""

    def start(self) -> RealServer:
        return self


class ScriptedRounds(ProcessRounds):
    """A run whose load is a module, and which counts its rounds."""

    load_s = (0.0, 0.0)

    def __init__(self, folder: Path, module: str, print_line: PrintLine) -> None:
        super().__init__(folder, 1, print_line, [NoServer(folder)])
        self.module = module
        self.rounds = 0

    def prepare(self) -> None:
        pass

    def words(self, name: str, seed: str) -> list[str]:
        return []

    def is_enough(self, length: int) -> bool:
        return self.rounds >= length

    def progress(self) -> int:
        return self.rounds

    def inject_fault(self) -> None:
        if self.module == DIES:
            until(lambda: all(load.poll() is not None for load in self.loads.values()))

    def check_round(self) -> None:
        self.rounds += 1

    def settle(self) -> None:
        pass

    def broken(self) -> list[str]:
        return []

    def numbers(self) -> str:
        return f"{self.rounds} rounds"


class Standing(ScriptedRounds):
    """Nothing goes on in it."""

    stuck_s = 0.0

    def check_round(self) -> None:
        pass


@pytest.fixture
def printed() -> list[str]:
    return []


def test_loads_that_are_killed_break_nothing(tmp_path: Path, printed: list[str]) -> None:
    one = ScriptedRounds(tmp_path, LIVES, printed.append)
    assert judged(one, 6, "all is well") == 0
    assert printed[-1] == "all is well"
    assert one.kills["clients"] > 0
    assert all(load.poll() is not None for load in one.loads.values())


def test_a_load_that_ends_by_itself_breaks_the_run_off(tmp_path: Path, printed: list[str]) -> None:
    assert judged(ScriptedRounds(tmp_path, DIES, printed.append), 6, "") == 1
    (broken,) = [text for text in printed if text.startswith("BROKEN")]
    assert "load one ended by itself with 1" in broken
    assert "No module named no_such_load" in broken


def test_a_run_without_progress_ends(tmp_path: Path, printed: list[str]) -> None:
    assert judged(Standing(tmp_path, LIVES, printed.append), 6, "") == 1
    assert "BROKEN: the run broke off: nothing went on for 0 s, behind 0" in printed
