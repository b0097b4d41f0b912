"""The options of the streaming job: what cannot be is one line, before Spark starts."""

from __future__ import annotations

import pytest

from metrics_job.stream import main


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--files-max", "0"), "argument --files-max: '0': allowed: 1 to 2147483647"),
        (("--files-max", "many"), "argument --files-max: 'many': allowed: 1 to 2147483647"),
        (("--every", "-1"), "argument --every: '-1': allowed: 0 to 1000000"),
        (("--every", "soon"), "argument --every: 'soon': allowed: 0 to 1000000"),
        (("--late-hours", "nan"), "argument --late-hours: 'nan': allowed: 0 to 1000000"),
        (("--late-hours", "-6"), "argument --late-hours: '-6': allowed: 0 to 1000000"),
    ],
)
def test_numbers_that_cannot_be_are_said(
    option: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--samples", "samples", "--out", "tables", *option])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
