"""A whole consumer proxy as text scenarios: events, and the results of each.

`--update-transcripts` writes the results as they are now; read the difference before it is kept.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.consumer.consumer_scenario import ConsumerScenario, WrittenScenario, read_scenarios
from tests.support.text_scenarios import played

SCENARIOS = list(read_scenarios(Path(__file__).parent / "scenarios"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[f"{each.file.stem}: {each.title}" for each in SCENARIOS])
def test_what_is_written_is_what_comes(scenario: WrittenScenario, request: pytest.FixtureRequest) -> None:
    run = ConsumerScenario()
    try:
        transcript = played(scenario.text, run.play).strip("\n")
    finally:
        run.rig.close()
    if request.config.getoption("--update-transcripts") and transcript != scenario.text:
        text = scenario.file.read_text(encoding="utf-8")
        old, new = (f"== {scenario.title}\n{version}\n" for version in (scenario.text, transcript))
        scenario.file.write_text(text.replace(old, new), encoding="utf-8")
        return
    assert transcript == scenario.text
