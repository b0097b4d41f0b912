"""GET /findings: at most one evaluation in a while, all processes together, and any text as a label."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Iterator
from typing import Any

import gevent
import msgspec
import pytest

from backend.memory import MemoryBackend
from backend.port import Health
from ddmq.address import HostPort
from ddmq.server.admin.api import AdminApi
from ddmq.server.admin.figures import OtherProcesses, component_line
from ddmq.server.findings import watch
from ddmq.server.findings.core import evaluator
from ddmq.server.findings.watch import FRESH_S, TICK_S, FindingsWatch, iterate_sliced, merge_findings
from ddmq.server.http.connection import AdminServer
from ddmq_common.clock import ManualClock
from ddmq_common.findings.table import RULES_BY_NAME
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry
from tests.support.waits import until

HOST = "127.0.0.1"
HOSTILE = "-x'; rm -rf ~ # \x1b[31m\u202e%2F../"


class ServedProcess:
    """The admin API of a process whose metrics a test sets, and its clock."""

    def __init__(self, instance: str = "mq-1:9813", others: OtherProcesses | None = None) -> None:
        self.clock, self.metrics = ManualClock(), Registry()
        self.watch = FindingsWatch(self.metrics, self.clock, instance, lambda: self.scheduler)
        self.scheduler = Health(True, "")
        self.backend = MemoryBackend(self.clock)
        self.api = AdminApi(
            self.backend, None, self.metrics, self.clock, self.backend.health,
            others=others, findings=self.watch,
        )  # fmt: skip

    def get(self, query: str = "", path: str = "/findings") -> Any:
        environ = {"REQUEST_METHOD": "GET", "RAW_URI": path, "QUERY_STRING": query}
        return msgspec.json.decode(b"".join(self.api.router(environ, lambda status, headers: None)))

    def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds / TICK_S)):
            self.clock.advance(TICK_S)
            self.watch.evaluate_rules()


@pytest.fixture
def process() -> Iterator[ServedProcess]:
    served = ServedProcess()
    yield served
    served.backend.close()


def test_all_well_is_an_empty_list_that_says_what_was_not_judged(process: ServedProcess) -> None:
    process.pass_time(60)
    answer = process.get()
    assert answer["items"] == answer["missing"] == []
    assert answer["left_out"] == {}
    assert answer["health"] == {"ready": True, "reason": ""}
    assert [row["id"] for row in answer["unevaluated"]] == ["DdmqProcessDown", "DdmqWriterLost"]
    assert all(row["why"] for row in answer["unevaluated"])


def test_a_finding_has_all_that_a_person_and_a_program_need(process: ServedProcess) -> None:
    process.metrics.cell(catalogue.BLOCKED_KEY_AGE, "billing", "orders").value = 840_000
    process.pass_time(15)
    since_ms = process.clock.wall_ms()
    process.pass_time(60)
    assert process.get()["items"] == [
        {
            "id": "DdmqKeyBlocked",
            "severity": "warning",
            "since_ms": since_ms,
            "labels": {"group": "billing", "topic": "orders"},
            "text": "A key of billing (orders) has been blocked for 14 min",
            "page": "/console/keys?group=billing",
            "command": "ddmq group keys billing",
            "action": RULES_BY_NAME["DdmqKeyBlocked"].action,
            "runbook": "docs/alerts.md#ddmqkeyblocked",
        }
    ]
    assert process.get(path="/stats")["findings"]["items"] == process.get()["items"]


def test_rules_are_evaluated_at_most_once_in_a_while(process: ServedProcess) -> None:
    runs = 0

    def count() -> None:
        nonlocal runs
        runs += 1

    process.metrics.add_collector(count)
    requests = [gevent.spawn(process.get) for _ in range(8)]
    gevent.joinall(requests, timeout=30, raise_error=True)
    assert runs == 1
    process.clock.advance(FRESH_S - 0.1)
    process.get()
    assert runs == 1
    process.clock.advance(0.1)
    process.get()
    assert runs == 2


def test_labels_may_be_any_text(process: ServedProcess) -> None:
    process.metrics.cell(catalogue.BLOCKED_KEY_AGE, HOSTILE, "orders").value = 700_000
    process.pass_time(75)
    (item,) = process.get()["items"]
    assert item["labels"]["group"] == HOSTILE
    assert shlex.split(item["command"]) == ["ddmq", "group", "keys", "--", HOSTILE]
    assert item["page"].isascii()
    assert item["page"].count("/") == 2
    assert HOSTILE in item["text"]


def test_the_delay_levels_of_another_process_are_no_finding(process: ServedProcess) -> None:
    process.pass_time(120)
    assert process.get()["items"] == []
    process.scheduler = Health(False, "no level scheduler")
    process.pass_time(120)
    assert [item["id"] for item in process.get()["items"]] == ["DdmqNoLevelScheduler"]


def test_the_instance_is_a_label_of_what_concerns_a_process(process: ServedProcess) -> None:
    process.metrics.cell(catalogue.LOG_DISK).value = 2
    process.pass_time(120)
    (item,) = process.get()["items"]
    assert item["labels"] == {"instance": "mq-1:9813"}
    assert item["text"] == "The log at mq-1:9813 rejects all writes: the disk is nearly full"


def test_the_public_port_has_the_findings_of_all_processes_and_names_the_silent_ones() -> None:
    part, others = ServedProcess("mq-1:9913"), OtherProcesses()
    public = ServedProcess("mq-1:9813", others)
    for served in (part, public):
        served.metrics.cell(catalogue.LOG_DISK).value = 1
        served.metrics.cell(catalogue.DEAD_LETTERS, "g", "t", "failed").value = 3
        served.pass_time(90)
    server = AdminServer((HOST, 0), part.api.router)
    server.start()
    with socket.create_server((HOST, 0)) as mute:  # it accepts, and says nothing
        ports = {"producer": server.server_port, "delay": mute.getsockname()[1]}
        for name, port in ports.items():
            others.record_address(component_line(name, HostPort(HOST, port)).strip())
        answer = public.get()
        own = public.get("forwarded=1")
        stats = public.get(path="/stats")
    server.stop(timeout=0)
    assert answer["missing"] == [{"name": "delay", "admin": f"{HOST}:{ports['delay']}"}]
    assert [(item["id"], item["labels"].get("instance")) for item in answer["items"]] == [
        ("DdmqWritesRefused", "mq-1:9813"), ("DdmqWritesRefused", "mq-1:9913"), ("DdmqDeadLetters", None)
    ]  # fmt: skip
    assert len(answer["unevaluated"]) == 2
    assert own["missing"] == []
    assert [item["labels"].get("instance") for item in own["items"]] == ["mq-1:9813", None]
    assert {"health": stats["health"]} | stats["findings"] == answer
    for served in (part, public):
        served.backend.close()


def test_of_equal_findings_the_oldest_stays_and_the_list_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "ITEMS_MAX", 2)

    def build_answer(*rows: tuple[str, int], more: int = 0) -> dict[str, Any]:
        items = [
            {"id": "DdmqLagOld", "severity": "warning", "since_ms": since_ms, "labels": {"group": group}}
            for group, since_ms in rows
        ]
        left_out = {"DdmqLagOld": more} if more else {}
        return {"items": items, "left_out": left_out, "unevaluated": [{"id": "a", "why": "b"}], "missing": []}

    merged = merge_findings(
        build_answer(("a", 5), ("b", 4)), [build_answer(("a", 3), ("c", 9), more=7), build_answer()], {}
    )
    assert [(item["labels"]["group"], item["since_ms"]) for item in merged["items"]] == [("a", 3), ("b", 4)]
    assert merged["left_out"] == {"DdmqLagOld": 8}
    assert merged["unevaluated"] == [{"id": "a", "why": "b"}]


def test_sets_of_labels_that_are_too_many_are_named(
    process: ServedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator, "SERIES_MAX", 3)
    for number in range(5):
        process.metrics.cell(catalogue.DEAD_LETTERS, f"g{number}", "t", "failed").value = 1
    process.pass_time(15)
    answer = process.get()
    assert len(answer["items"]) == 3
    assert answer["unevaluated"][-1] == {
        "id": "DdmqDeadLetters", "why": "2 sets of labels are too many to be watched"
    }  # fmt: skip


def test_others_run_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SLICE_S", 0.0)
    turns = []
    other = gevent.spawn(lambda: turns.append("other"))
    for number in iterate_sliced(range(200)):
        turns.append(number)
    other.join(5)
    assert "other" in turns[:-1]
    assert [turn for turn in turns if turn != "other"] == list(range(200))


def test_rules_are_evaluated_without_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "TICK_S", 0.01)
    served, moments = ServedProcess(), list[float]()
    served.metrics.add_collector(lambda: moments.append(served.clock.monotonic()))
    served.watch.start()
    until(lambda: served.clock.advance(FRESH_S) or len(moments) >= 3, "each tick evaluates them")
    served.watch.stop()
    served.backend.close()
