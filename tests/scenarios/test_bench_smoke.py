"""Every benchmark runs and finds its own counts right, in a size that measures nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BENCHMARKS = sorted(path.stem for path in (REPOSITORY / "bench").glob("t[0-9]*_*.py"))
KAFKA = ("t20_kafka", "t20d_kafka_subscriptions")
COMPILED = "t24_compiled"
COMMON = ("t01_send_sync", "t03_pull", "t05_order_keys", "t09_delay_ingest", "t24_compiled", "t28_tls")


def quick(name: str, folder: Path, *arguments: str) -> str:
    """What one small round of it prints; it asserts counts itself and says so with its exit code."""
    process = subprocess.run(
        [sys.executable, "-m", f"bench.{name}", *arguments, "--quick"],
        cwd=REPOSITORY,
        env=dict(os.environ, DDMQ_BENCH_DIR=str(folder)),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def marks(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.long] * (name not in (*COMMON, *KAFKA)) + [pytest.mark.kafka] * (name in KAFKA)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in BENCHMARKS])
def test_a_benchmark_is_right(name: str, tmp_path: Path) -> None:
    output = quick(name, tmp_path)
    if name in (*KAFKA, COMPILED) and "NOT MEASURED" in output:
        pytest.skip(output)  # no Java, no C compiler
    assert re.search("^== T", output, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("work", "last"), [("queues", "pull and ack"), ("delays", "storm")])
def test_the_peers_benchmark_prints_its_results(work: str, last: str, tmp_path: Path) -> None:
    """With those that are installed here."""
    assert f"\n   ours, {last}: " in quick("peers", tmp_path, work)


def test_the_comparison_with_peers_has_each_system_and_figure() -> None:
    from bench.peers.summary import picture, tables

    results = {
        "ours, one a call": {"per_s": 1000.0, "cpu_us": 30.0},
        "Redis Streams, one a call": {"per_s": 500.0, "cpu_us": 17.0},
        "ours, pull and ack": {"per_s": 9.0},
    }
    assert tables(results).splitlines() == [
        "| one a call | per_s | cpu_us |",
        "|---|---|---|",
        "| ours | 1,000 | 30 |",
        "| Redis Streams | 500 | 17 |",
        "",
        "| pull and ack | per_s |",
        "|---|---|",
        "| ours | 9 |",
    ]
    drawn = ElementTree.fromstring(picture(results))
    bars = [
        float(one.attrib["width"])
        for one in drawn.iter("{http://www.w3.org/2000/svg}rect")
        if "x" in one.attrib
    ]
    assert bars[0] == pytest.approx(2 * bars[1])
    assert "Redis Streams" in [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text")]


def test_confirms_are_read_up_to_the_last_complete_one() -> None:
    from bench.peers import amqp

    def confirm(tag: int, multiple: int) -> bytes:
        return amqp.frame(amqp.METHOD, amqp.WHICH.pack(*amqp.ACK) + amqp.CONFIRM.pack(tag, multiple))

    data = confirm(7, 1) + confirm(9, 0)
    assert list(amqp.confirms(data + confirm(10, 0)[:-1])) == [(7, True), (9, False)]
    with pytest.raises(AssertionError, match="a confirm was to come"):
        list(amqp.confirms(amqp.frame(amqp.METHOD, amqp.WHICH.pack(60, 120))))


def test_the_report_has_a_row_per_series(tmp_path: Path) -> None:
    from bench.report import HEAD, table

    series = {
        "no-op": {"floor": None, "reach": "", "rounds": [{"per_s": 1000.0}, {"per_s": 3000.0}]},
        "send": {
            "floor": "no-op",
            "reach": "≥ 0.65",
            "rounds": [{"per_s": 500.0, "p50_ms": 2.0}, {"per_s": 1500.0, "p50_ms": 4.0}],
        },
    }
    results = {"title": "T1: sends", "at": "-", "machine": {}, "facts": {}, "series": series}
    (tmp_path / "t01_send.json").write_text(json.dumps(results))
    assert table(tmp_path).splitlines() == [
        *HEAD.splitlines(),
        "| T1 | no-op | per_s |  | 2,000 | 1,000–3,000 |  |",
        "| T1 | send | per_s | ≥ 0.65 | 1,000 (p50_ms 3) | 500–1,500 | 0.50 |",
    ]


def test_there_are_benchmarks() -> None:
    assert len(BENCHMARKS) >= 7
    assert set(BENCHMARKS) >= {*COMMON, *KAFKA}
