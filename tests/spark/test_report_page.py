"""The HTML file: complete in itself, safe against any name, and honest about what is not there."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from metrics_job.report import html
from metrics_job.report.core.facts import report_of
from metrics_job.report.core.material import build_time_range
from metrics_job.report.reading import Tables
from metrics_job.report.run import build_page
from tests.spark.report_tables import Writer, at, ms

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\"'"


class PageText(HTMLParser):
    """Tags with their attributes, and the text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def build(folder: Path, start: int = 60, end: int = 70) -> str:
    return build_page(report_of(Tables(folder).read_material(build_time_range(ms(start), ms(end)))), ms(80))


@pytest.fixture
def evil(tmp_path: Path) -> str:
    writer = Writer(tmp_path)
    for minute in range(60, 70):
        writer.counter(at(minute), "ddmq_sends_total", 10, EVIL, detail="code=0")
        writer.counter(at(minute), "ddmq_sends_total", 1, EVIL, detail=f"code={EVIL}")
        writer.counter(at(minute), "ddmq_dead_letters_total", 1, EVIL, EVIL, f"reason={EVIL}")
        writer.times(at(minute), "ddmq_send_latency_us", [100.0], EVIL)
        writer.lag(at(minute), EVIL, EVIL, 5.0, blocked_keys=1.0, time_to_drain_s=None, lag_age_ms=7e6)
    writer.process(at(60), at(70), process=EVIL, ended="vanished")
    writer.slo(at(60).date(), EVIL, 1, 10, 0.9, EVIL, EVIL)
    writer.add("rejects", {"file": EVIL, "reason": "corrupt", "lines": 1, "example": EVIL})
    anomaly = {"start": at(60), "metric": EVIL, "topic": EVIL, "group": EVIL, "value": 9.0, "usual": 1.0}
    writer.add("anomalies_hour", {**anomaly, "deviation": 8.0, "weeks": 4})
    return build(writer.write())


def test_no_name_becomes_a_tag(evil: str) -> None:
    page = PageText(evil)
    assert [tag for tag, _ in page.tags].count("script") == 3
    assert "img" not in {tag for tag, _ in page.tags}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.text.count(EVIL) > 10


def test_names_in_charts_are_escaped_for_the_script_and_for_its_labels(evil: str) -> None:
    figures = drawn(evil)
    (line,) = figures["lag"]["data"]
    assert "<" not in line["name"]
    assert line["name"].startswith("&lt;/script&gt;")
    assert "…" in line["name"]


def drawn(text: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(re.findall(r'id="figures">(.*?)</script>', text)[0])
    return figures


def test_nothing_is_fetched(evil: str) -> None:
    page = PageText(evil)
    for tag, attributes in page.tags:
        assert "src" not in attributes, tag
        assert (attributes.get("href") or "#").startswith("#"), tag
        assert tag not in ("link", "iframe", "object", "base")
    assert "@import" not in evil.partition("</style>")[0]
    assert "url(" not in evil.partition("</style>")[0]
    assert "default-src 'none'" in evil


def test_every_figure_has_its_element_and_every_link_its_target(evil: str) -> None:
    page = PageText(evil)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(drawn(evil)) <= set(ids)
    links = {str(attributes["href"])[1:] for tag, attributes in page.tags if tag == "a"}
    assert links <= set(ids)
    assert {"promises", "waiting", "top", "processes", "changes", "rejects"} <= links


def test_missing_data_is_described_in_words(tmp_path: Path) -> None:
    text = build(tmp_path)
    page = PageText(text)
    assert "script" not in {tag for tag, _ in page.tags}
    for expected_text in (
        "No samples in this range",
        "No message was sent or delivered",
        "No subscription had messages waiting",
        "Nothing of this kind happened",
        "Nothing to judge",
        "No earlier week to compare with",
        "Less than three hours",
        "No process was seen",
        "No topic was sent to or consumed",
    ):
        assert expected_text in page.text, expected_text


def test_numbers_on_the_page_are_those_of_the_rows(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.counter(at(60), "ddmq_sends_total", 12_345, "orders", detail="code=0")
    writer.counter(at(60), "ddmq_delivered_total", 12_346, "orders", "g")
    writer.counter(at(60), "ddmq_acked_total", 12_344, "orders", "g")
    writer.process(at(60), at(61))
    text = build(writer.write())
    tiles = dict(re.findall(r'"tile"><span class="soft">([^<]+)</span><b>([^<]+)</b>', text))
    assert tiles["sent and stored"] == "12,345"
    assert tiles["delivered"] == "12,346"
    assert tiles["acknowledged"] == "12,344"
    assert "All well." in text


def test_what_is_left_out_of_a_list_opens_below_it(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for number in range(19):
        writer.counter(at(60), "ddmq_sends_total", 100 - number, f"topic-{number}", detail="code=0")
        writer.counter(at(60), "ddmq_sends_total", 100 - number, f"topic-{number}", detail="code=11")
    text = build(writer.write())
    topics, refused = re.findall(r"<summary>(… and [^<]*)</summary>(.*?)</details>", text, re.S)
    assert (topics[0], refused[0]) == ("… and 9 more", "… and 11 more")
    assert [f"topic-{number}" in topics[1] for number in (9, 10, 18)] == [False, True, True]
    assert [f"topic-{number}<" in refused[1] for number in (7, 8, 18)] == [False, True, True]


def test_of_thousands_the_first_are_on_the_page() -> None:
    text = html.first_rows_table(("topic",), [(f"topic-{number}",) for number in range(5000)], 10)
    assert "… and 4,990 more, 300 of them here" in text
    assert text.count('<td data-head="topic">') == 310


def test_findings_and_names_lead_to_the_console_if_there_is_one(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for minute in range(60, 70):
        writer.counter(at(minute), "ddmq_sends_total", 10, "orders", detail="code=0")
        writer.counter(at(minute), "ddmq_delivered_total", 1, "orders", "a/b")
        writer.lag(at(minute), "a/b", "orders", 5.0, time_to_drain_s=None, lag_age_ms=7e6)
    writer.process(at(60), at(70))
    report = report_of(Tables(writer.write()).read_material(build_time_range(ms(60), ms(70))))
    page = PageText(build_page(dataclasses.replace(report, console="http://127.0.0.1:9813"), ms(80)))
    links = {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    assert {f"http://127.0.0.1:9813/console/{each}" for each in ("groups/a%2Fb", "topics/orders")} <= links
    assert "▲ warning" in page.text
    assert [finding.severity for finding in report.findings] == ["warning"]
