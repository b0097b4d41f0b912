"""Before it starts, the demo rejects folders in which it would touch foreign files or lose its report."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from ddmq.cli.root import run
from ddmq.demo import story
from ddmq.demo.server import SIDE_FILES, side_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The demo itself, replaced: whether it was started, and with which arguments."""
    started = Mock()
    monkeypatch.setattr(story, "_run_demo", started)
    return started


def rejection_of(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert run(["demo", *options]) == 1
    return " ".join(capsys.readouterr().err.split())


def test_a_folder_that_holds_anything_is_rejected(
    tmp_path: Path, started: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").mkdir()
    assert "is not empty (log is in it)" in rejection_of(capsys, "--data-dir", str(tmp_path))
    started.assert_not_called()


def test_a_file_is_no_data_directory(
    tmp_path: Path, started: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    error = rejection_of(capsys, "--data-dir", str(file))
    assert f"--data-dir {file}: is a file" in error
    assert "\\n" not in error
    started.assert_not_called()


def test_a_folder_that_cannot_be_created_is_rejected(
    started: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    error = rejection_of(capsys, "--data-dir", "/proc/ddmq-demo")
    assert error.startswith("Error: --data-dir /proc/ddmq-demo: ")
    assert "Traceback" not in error
    started.assert_not_called()


@pytest.mark.parametrize("suffix", SIDE_FILES)
def test_no_file_beside_the_folder_is_overwritten(
    suffix: str, tmp_path: Path, started: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / f"shop.{suffix}"
    other.write_text("the user's own")
    assert f"would overwrite {other}" in rejection_of(capsys, "--data-dir", str(tmp_path / "shop"))
    assert other.read_text() == "the user's own"
    started.assert_not_called()


def test_a_report_without_a_folder_is_rejected_at_the_start(
    tmp_path: Path, started: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    error = rejection_of(capsys, "--report", str(tmp_path / "absent" / "report.html"))
    assert f"the folder {tmp_path / 'absent'} does not exist" in error
    started.assert_not_called()


@pytest.mark.parametrize(
    ("option", "allowed"), [("--data-dir", "a directory, . for this one"), ("--report", "the name of a file")]
)
@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_or_blank_value_is_rejected(
    option: str, allowed: str, value: str, started: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["demo", option, value]) == 2
    assert f"'{option}': {value!r} is empty; allowed: {allowed}" in capsys.readouterr().err
    started.assert_not_called()


def test_an_empty_folder_and_a_new_one_are_used(tmp_path: Path, started: Mock) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "new"):
        assert run(["demo", "--data-dir", str(folder), "--report", str(tmp_path / "report.html")]) == 0
    assert [call.args[0] for call in started.call_args_list] == [tmp_path / "empty", tmp_path / "new"]


def test_side_files_have_the_whole_name_of_the_folder(tmp_path: Path) -> None:
    first, second = (side_path(tmp_path / name, "log") for name in ("shop.v1", "shop.v2"))
    assert first == tmp_path / "shop.v1.log"
    assert first != second
