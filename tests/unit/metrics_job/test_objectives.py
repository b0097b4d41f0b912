"""conf/slo.yaml, and what is refused in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddmq_common.errors import ConfigError
from ddmq_common.metrics.cells import upper_edge
from metrics_job.rollups.judged import Objective, default_objectives, load_objectives

CONF = Path(__file__).parents[3] / "conf"


def test_the_objectives_file_states_the_defaults() -> None:
    assert load_objectives(CONF) == default_objectives() == load_objectives(None)


def test_a_folder_without_the_file_has_the_defaults(tmp_path: Path) -> None:
    assert load_objectives(tmp_path) == default_objectives()


def test_a_good_bucket_lies_within_the_limit() -> None:
    last = Objective(99, "ddmq_send_latency_us", 50).last_good_bucket
    assert upper_edge(last) <= 50_000 < upper_edge(last + 1)
    assert Objective(99, "ddmq_send_latency_us", 0).last_good_bucket == -1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{metric: ddmq_send_latency_us, percent: 99}", "at_most_ms is missing"),
        ("{metric: ddmq_acked_total, at_most_ms: 5, percent: 99}", "ddmq_send_latency_us"),
        ("{percent: 101}", "0 to 100"),
        ("{percent: 99, topics: orders}", "did you mean 'topic'"),
        ("{topic: orders}", "'percent' is missing"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "slo.yaml").write_text(f"objectives:\n  mine: {text}\n")
    with pytest.raises(ConfigError, match=says) as caught:
        load_objectives(tmp_path)
    assert "slo.yaml:2: objectives.mine" in str(caught.value)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"/nowhere: no such folder; --config"):
        load_objectives(tmp_path / "nowhere")
