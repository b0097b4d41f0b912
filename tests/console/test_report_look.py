"""The report in a browser: cards on narrow screens, and no obstacle for a keyboard or a screen reader."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.console.obstacles import find_obstacles

HOSTILE = "<b>a-long-name-that-has-no-place-to-break-and-goes-on-" + "x" * 60
TAB_STOPS_MAX = 300


@pytest.fixture(scope="module")
def report_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("pyarrow", "plotly"):
        pytest.importorskip(package, reason="the extra spark is not installed")
    from metrics_job.report.core.facts import report_of
    from metrics_job.report.core.material import build_time_range
    from metrics_job.report.reading import Tables
    from metrics_job.report.run import build_page
    from tests.spark.report_tables import Writer, at, ms

    folder = tmp_path_factory.mktemp("report")
    writer = Writer(folder / "tables")
    for minute in range(60, 90):
        if 70 <= minute < 75:
            continue  # no process ran
        for topic, group in (("orders", "billing"), (HOSTILE, HOSTILE)):
            writer.counter(at(minute), "ddmq_sends_total", 10 + minute % 7, topic, detail="code=0")
            writer.counter(at(minute), "ddmq_delivered_total", 9, topic, group)
            writer.counter(at(minute), "ddmq_dead_letters_total", 1, topic, group, "reason=failed")
            writer.times(at(minute), "ddmq_send_latency_us", [100.0, 9_000.0], topic)
            writer.lag(at(minute), group, topic, 5.0, blocked_keys=1.0, time_to_drain_s=None, lag_age_ms=7e6)
    writer.process(at(60), at(70), process="server-1", ended="vanished")
    writer.slo(at(60).date(), "sends", 1, 100, 0.9, "orders", "billing")
    writer.add("rejects", {"file": "a", "reason": "corrupt", "lines": 1, "example": "…"})
    material = Tables(writer.write()).read_material(build_time_range(ms(60), ms(90)))
    report = dataclasses.replace(report_of(material), console="http://127.0.0.1:9813")
    path = folder / "report.html"
    path.write_text(build_page(report, ms(95)))
    return path


@pytest.fixture
def page(browser: Any, report_file: Path) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, bypass_csp=True)
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto(report_file.as_uri())
    opened.locator("#throughput svg").first.wait_for()
    yield opened
    context.close()
    assert errors == []


def test_the_report_has_no_obstacle_for_assistive_technology(page: Any) -> None:
    assert find_obstacles(page) == []


def test_rows_are_cards_with_the_names_of_their_columns_on_a_telephone(page: Any) -> None:
    page.set_viewport_size({"width": 375, "height": 900})
    cell = page.locator("#waiting td").first
    assert cell.evaluate("cell => getComputedStyle(cell, '::before').content") == '"group"'
    assert page.locator("#waiting tbody tr").first.evaluate("row => getComputedStyle(row).display") == "grid"
    for each in page.locator(".scroll").all():
        assert each.evaluate("area => area.scrollWidth - area.clientWidth") <= 0


def test_severities_differ_by_word_and_sign(page: Any) -> None:
    badges = page.locator(".verdict .badge").all_inner_texts()
    assert {"✗ critical", "▲ warning", "· info"} == set(badges)


def test_the_tab_key_passes_through_the_whole_report(page: Any) -> None:
    focusable = page.locator("a[href], summary, [tabindex='0']").count()
    reached = set()
    for _ in range(TAB_STOPS_MAX):
        page.keyboard.press("Tab")
        place = page.evaluate(
            "() => [...document.querySelectorAll('a[href], summary, [tabindex=\"0\"]')]"
            ".indexOf(document.activeElement)"
        )
        if place < 0 and reached:
            break
        reached.add(place)
    hidden = page.locator("details:not([open]) :is(a[href], [tabindex='0'])").count()
    assert len(reached - {-1}) == focusable - hidden
