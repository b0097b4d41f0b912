"""The delay engine as text scenarios: events, and what each brings."""

from __future__ import annotations

from pathlib import Path

import pytest

from delay_service.config import DelayConfig
from tests.service.delay.delay_scenario import DelayScenario

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_what_is_written_is_what_comes(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    played = DelayScenario(DelayConfig(shards=1, slice_count=4))
    came: list[str] = []
    try:
        for line in text.splitlines():
            if line.startswith("#") or not line:
                came.append(line)
            elif not line.startswith(">"):
                came += [line, *played.play(line)]
    finally:
        played.rig.close()
    assert "\n".join(came) + "\n" == text
