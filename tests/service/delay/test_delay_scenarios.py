"""The delay engine as text scenarios: events, and what each brings."""

from __future__ import annotations

from pathlib import Path

import pytest

from delay_service.config import DelayConfig
from tests.service.delay.delay_scenario import DelayScenario
from tests.support.text_scenarios import played

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_what_is_written_is_what_comes(file: Path, request: pytest.FixtureRequest) -> None:
    text = file.read_text(encoding="utf-8")
    scenario = DelayScenario(DelayConfig(shards=1, slice_count=4))
    try:
        transcript = played(text, scenario.play)
    finally:
        scenario.rig.close()
    if request.config.getoption("--update-transcripts"):
        file.write_text(transcript, encoding="utf-8")
    else:
        assert transcript == text
