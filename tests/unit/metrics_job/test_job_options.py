"""The options of the job's commands: what cannot be is one line, before Spark starts."""

from __future__ import annotations

import sys

import pytest

from metrics_job.cli import main


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        ("yesterday", "'yesterday' is no time"),
        ("999999999999999999", "'999999999999999999': allowed: times from 1970 to 9998"),
        ("-1", "'-1': allowed: times from 1970 to 9998"),
        ("1969-12-31", "'1969-12-31': allowed: times from 1970 to 9998"),
        ("9999-12-31T23:59", "'9999-12-31T23:59': allowed: times from 1970 to 9998"),
    ],
)
def test_an_impossible_time_is_reported(
    moment: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["batch", "--samples", "s", "--out", "t"], ["report", "--out", "t"]):
        monkeypatch.setattr(sys, "argv", ["metrics_job", *command, "--from", moment])
        with pytest.raises(SystemExit) as exit_info:
            main()
        assert exit_info.value.code == 2
        assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (("--files-max", "0"), "'--files-max': '0': allowed: 1 to 2147483647"),
        (("--files-max", "many"), "'--files-max': 'many': allowed: 1 to 2147483647"),
        (("--every", "-1"), "'--every': '-1': allowed: 0 to 1000000"),
        (("--every", "soon"), "'--every': 'soon': allowed: 0 to 1000000"),
        (("--late-hours", "nan"), "'--late-hours': 'nan': allowed: 0 to 1000000"),
        (("--late-hours", "-6"), "'--late-hours': '-6': allowed: 0 to 1000000"),
    ],
)
def test_an_impossible_number_of_the_stream_is_reported(
    option: tuple[str, str], text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["metrics_job", "stream", "--samples", "s", "--out", "t", *option])
    with pytest.raises(SystemExit) as exit_info:
        main()
    assert exit_info.value.code == 2
    assert text in capsys.readouterr().err
