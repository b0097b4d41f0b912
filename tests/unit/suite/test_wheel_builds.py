"""`make wheels`: what it reads of a wheel, what it says of a missing Python, and when it fails."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tools import interpreters, wheels
from tools.interpreters import Interpreter
from tools.wheel_contents import MANIFEST, WheelContents, contents_table, read_contents
from tools.wheel_trial import TrialError

HERE = Interpreter("3.11.7", Path("/py/3.11/bin/python"))
THERE = Interpreter("3.14.1", Path("/py/3.14/bin/python"))


def write_wheel(folder: Path, licences: tuple[str, ...] = ("LICENSE", "NOTICE"), **manifest: Any) -> Path:
    """Write a wheel that names LICENSE and NOTICE in its metadata and contains `licences`."""
    wheel = folder / "ddmq_proxy-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("ddmq_proxy-1.dist-info/METADATA", "License-File: LICENSE\nLicense-File: NOTICE\n\n")
        for name in licences:
            archive.writestr(f"ddmq_proxy-1.dist-info/licenses/{name}", "text")
        if manifest:
            archive.writestr(MANIFEST, json.dumps(manifest))
    return wheel


def test_a_licence_file_counts_only_if_the_wheel_contains_it(tmp_path: Path) -> None:
    assert read_contents(write_wheel(tmp_path)).licences == ("LICENSE", "NOTICE")
    assert read_contents(write_wheel(tmp_path, licences=("LICENSE",))).licences == ("LICENSE",)


def test_compiled_modules_are_those_of_the_manifest(tmp_path: Path) -> None:
    assert read_contents(write_wheel(tmp_path)).modules == 0
    assert read_contents(write_wheel(tmp_path, modules=["a", "b"])).modules == 2
    contents = read_contents(write_wheel(tmp_path, modules=[], reason="there is no C compiler (cc)"))
    assert (contents.modules, contents.reason) == (0, "there is no C compiler (cc)")


def test_the_table_has_a_line_for_each_wheel() -> None:
    table = contents_table([WheelContents(Path("dist/a.whl"), 73, "", ("LICENSE", "NOTICE"), 2048 * 1024)])
    assert table.splitlines() == [
        "file     KiB  compiled modules  licence files",
        "a.whl  2,048  73                LICENSE, NOTICE",
    ]


@pytest.mark.slow  # it starts the interpreter
def test_an_interpreter_is_searched_only_at_its_path(tmp_path: Path) -> None:
    interpreter = interpreters.find_interpreter(sys.executable)
    assert interpreter is not None
    assert interpreter.version == ".".join(map(str, sys.version_info[:3]))
    assert interpreters.find_interpreter(str(tmp_path / "python")) is None


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """A machine on which every build and trial succeeds; by request, its Pythons and what fails."""
    state: dict[str, Any] = {"pythons": {"3.11": HERE, "3.14": THERE}, "unbuilt": "", "trial": ""}

    def build_wheel(
        interpreter: Interpreter, copy_source: object, target: Path, *, modules: bool
    ) -> WheelContents:
        if interpreter.version == state["unbuilt"]:
            raise wheels.BuildError("nothing was compiled: there is no Python.h")
        return WheelContents(
            target / f"{interpreter.version}-{modules}.whl", 73 * modules, "", ("LICENSE", "NOTICE"), 1
        )

    def run_trial(python: Path, wheel: object) -> float:
        if str(python) == state["trial"]:
            raise TrialError("ddmq pull printed ''")
        return 1.0

    monkeypatch.setattr(wheels, "find_interpreter", state["pythons"].get)
    monkeypatch.setattr(wheels, "build_wheel", build_wheel)
    monkeypatch.setattr(wheels, "try_server", run_trial)
    monkeypatch.setattr(wheels, "try_client", run_trial)
    return state


def test_each_wheel_is_tried_on_each_python_that_it_fits(
    machine: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert wheels.main(["3.11", "3.14"]) == 0
    printed = capsys.readouterr().out
    assert "3.11.7    passed    passed    passed\n3.14.1    passed    passed    passed\n" in printed
    assert printed.count(".whl") == 4  # one compiled for each Python, one pure, and the client's


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--require-all"], 1)])
def test_a_missing_python_is_named_and_fails_on_request(
    machine: dict[str, Any], capsys: pytest.CaptureFixture[str], options: list[str], code: int
) -> None:
    assert wheels.main(["3.11", "3.12", *options]) == code
    captured = capsys.readouterr()
    assert captured.err == "wheels: Python 3.12 is not on this machine and could not be fetched; skipped\n"
    assert captured.out.endswith("3.12      missing\n")


def test_a_build_without_any_python_fails(machine: dict[str, Any]) -> None:
    assert wheels.main(["3.12"]) == 1


def test_an_unbuilt_wheel_fails_and_the_others_are_tried(
    machine: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    machine["unbuilt"] = THERE.version
    assert wheels.main(["3.11", "3.14"]) == 1
    captured = capsys.readouterr()
    assert "Python 3.14.1: compiled wheel: not built: nothing was compiled" in captured.err
    assert "3.11.7    passed    passed    passed\n3.14.1    FAILED    passed    passed\n" in captured.out


def test_a_failed_trial_fails(machine: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    machine["trial"] = str(THERE.path)
    assert wheels.main(["3.11", "3.14"]) == 1
    assert "Python 3.14.1: client wheel: trial failed: ddmq pull printed ''" in capsys.readouterr().err
