"""GET /snapshot, /events and /history over one process: what they contain, and how often it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
import gevent.event
import msgspec
import pytest

from backend.memory import MemoryBackend
from ddmq.address import HostPort
from ddmq.server.admin import topics
from ddmq.server.admin.api import AdminApi
from ddmq.server.admin.figures import OtherProcesses, component_line
from ddmq.server.http.connection import AdminServer
from ddmq.server.live import live_views
from ddmq.server.live.core.snapshot import BEHIND_MAX, VERSIONS
from ddmq.server.live.live_views import BEHIND_S, EncodedSnapshot, LiveViews
from ddmq_common.clock import ManualClock
from ddmq_common.errors import TryLaterError
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry
from tests.support.waits import PATIENCE_S

HOST = "127.0.0.1"


class SampledProcess:
    """An admin API over its own memory backend; `live` is its part with snapshots and history."""

    def __init__(self, others: OtherProcesses | None = None) -> None:
        self.clock, self.metrics = ManualClock(), Registry()
        self.backend = MemoryBackend(self.clock)
        self.api = AdminApi(
            self.backend,
            None,
            self.metrics,
            self.clock,
            self.backend.health,
            others=others or OtherProcesses(),
        )
        self.live = self.api.live

    def send(self, count: int, topic: str = "orders") -> None:
        self.metrics.cell(catalogue.SENDS, topic, "0").value += count

    def pass_seconds(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.live.sampler.take_sample()

    def request(self, path: str, query: str = "", method: str = "GET") -> tuple[str, Any]:
        statuses: list[str] = []
        environ = {"REQUEST_METHOD": method, "RAW_URI": path, "QUERY_STRING": query}
        environ["CONTENT_TYPE"] = "application/json"
        answer = b"".join(self.api.router(environ, lambda status, headers: statuses.append(status)))
        return statuses[0][:3], msgspec.json.decode(answer)


def no_findings() -> dict[str, Any]:
    return {"items": [], "left_out": {}, "unevaluated": []}


def no_delays() -> None:
    """Of a process without a delay service."""


def build_views(process: SampledProcess, find_behind: Callable[[int], list[dict[str, Any]]]) -> LiveViews:
    return LiveViews(
        process.backend,
        process.metrics,
        process.clock,
        dict,
        OtherProcesses(),
        find_behind,
        no_findings,
        no_delays,
    )


def decode(snapshot: EncodedSnapshot) -> Any:
    return msgspec.json.decode(snapshot.payload)


def test_a_snapshot_has_the_totals_and_their_tails() -> None:
    process = SampledProcess()
    process.pass_seconds()
    process.send(7)
    process.pass_seconds()
    status, snapshot = process.request("/snapshot")
    assert status == "200"
    assert snapshot["at_ms"] == process.clock.wall_ms()
    assert snapshot["health"]["ready"]
    assert snapshot["totals"]["in_per_s"] == 7
    assert snapshot["totals"]["lag"] is None, "there is no consumer proxy here"
    assert snapshot["behind"] is None
    tails = snapshot["tails"]
    assert tails["values"]["in_per_s"] == [None] * 59 + [7]
    assert tails["from_ms"] + 59_000 == snapshot["at_ms"] // 1000 * 1000
    assert (snapshot["findings"], snapshot["due_next_hour"], snapshot["missing"]) == ([], None, {})


def test_a_snapshot_is_made_once_for_all_that_ask_for_it() -> None:
    process, calls = SampledProcess(), list[int]()

    def find_behind(count: int) -> list[dict[str, Any]]:
        calls.append(count)
        gevent.sleep(0)
        return [{"group": "g", "lag": 5}]

    live = LiveViews(
        process.backend,
        process.metrics,
        process.clock,
        dict,
        OtherProcesses(),
        find_behind,
        no_findings,
        no_delays,
    )
    requests = [gevent.spawn(live.fetch_snapshot) for _ in range(5)]
    gevent.joinall(requests, timeout=PATIENCE_S, raise_error=True)
    assert all(each.value is requests[0].value for each in requests)
    assert calls == [BEHIND_MAX]
    process.clock.advance(1.0)
    assert live.fetch_snapshot() is not requests[0].value
    assert calls == [BEHIND_MAX], "who is behind is read every 5 s"
    process.clock.advance(BEHIND_S)
    assert decode(live.fetch_snapshot())["behind"] == [{"group": "g", "lag": 5}]
    assert calls == [BEHIND_MAX] * 2


def test_who_is_behind_keeps_its_rows_when_it_cannot_be_read() -> None:
    process, errors = SampledProcess(), list[Exception]()

    def find_behind(_: int) -> list[dict[str, Any]]:
        if errors:
            raise errors[0]
        return [{"group": "g"}]

    live = LiveViews(
        process.backend,
        process.metrics,
        process.clock,
        dict,
        OtherProcesses(),
        find_behind,
        no_findings,
        no_delays,
    )
    before = decode(live.fetch_snapshot())
    errors.append(TryLaterError("the writer is away"))
    process.clock.advance(BEHIND_S)
    after = decode(live.fetch_snapshot())
    assert after["behind"] == [{"group": "g"}]
    assert after["behind_at_ms"] == before["behind_at_ms"]
    assert after["missing"] == {"behind": "the writer is away"}


def test_a_slow_reading_of_who_is_behind_delays_no_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_views, "BEHIND_WAIT_S", 0.01)
    process, end = SampledProcess(), gevent.event.Event()

    def find_behind(_: int) -> list[dict[str, Any]]:
        end.wait(PATIENCE_S)
        return [{"group": "g"}]

    live = LiveViews(
        process.backend,
        process.metrics,
        process.clock,
        dict,
        OtherProcesses(),
        find_behind,
        no_findings,
        no_delays,
    )
    assert decode(live.fetch_snapshot())["behind"] is None
    end.set()
    process.clock.advance(1.0)
    assert decode(live.fetch_snapshot())["behind"] == [{"group": "g"}]


def test_findings_are_read_every_ten_seconds() -> None:
    process, calls = SampledProcess(), list[int]()

    def list_findings() -> dict[str, Any]:
        calls.append(1)
        return no_findings() | {"items": [{"id": "A", "severity": "info", "since_ms": 1, "labels": {}}]}

    live = LiveViews(
        process.backend,
        process.metrics,
        process.clock,
        dict,
        OtherProcesses(),
        None,
        list_findings,
        no_delays,
    )
    for _ in range(11):
        (finding,) = decode(live.fetch_snapshot())["findings"]
        assert finding["id"] == "A"
        process.clock.advance(1.0)
    assert len(calls) == 2


def test_versions_change_with_their_lists() -> None:
    process = SampledProcess()

    def read_changed() -> set[str]:
        now = process.live.versions.read()
        changed = {name for name in VERSIONS if now[name] != before[name]}
        before.update(now)
        return changed

    before = process.live.versions.read()
    assert read_changed() == set()
    topics.create(process.backend, process.clock, "orders", {})
    assert read_changed() == {"topics"}
    process.metrics.cell(catalogue.DEAD_LETTERS, "g", "orders", "failed").value += 1
    assert read_changed() == {"dead_letters"}
    process.request("/dlq/g/purge", method="POST")
    assert "dead_letters" in read_changed()
    opened, ended = process.metrics.cell(catalogue.TRANSACTIONS_OPEN), catalogue.TRANSACTIONS_ENDED
    opened.value += 1
    assert read_changed() == {"transactions"}
    opened.value -= 1
    process.metrics.cell(ended, "committed").value += 1
    assert read_changed() == {"transactions"}
    assert min(before.values()) >= 1_700_000_000_000, "a restart changes every version"


def test_the_history_of_totals_and_of_a_topic() -> None:
    process = SampledProcess()
    process.send(1)
    process.pass_seconds()
    for _ in range(20):
        process.send(3)
        process.pass_seconds()
    status, answer = process.request("/history", "series=in_per_s&step_s=1")
    assert status == "200"
    assert answer["series"]["in_per_s"][-20:] == [3] * 20
    assert answer["series"]["in_per_s"][-21] is None
    assert answer["from_ms"] + 600_000 == process.clock.wall_ms() // 1000 * 1000 + 1000
    assert answer["topics"] == ["orders"]
    assert answer["missing"] == {}
    _, answer = process.request("/history", "topic=orders&step_s=10")
    assert answer["step_s"] == 10
    assert answer["series"]["in_per_s"][-1] == 3
    assert answer["series"].keys() == {"in_per_s", "in_bytes_per_s"}
    day_ago = process.clock.wall_ms() - 86_000_000
    _, answer = process.request("/history", f"series=lag,in_per_s&from_ms={day_ago}")
    assert answer["step_s"] == 90
    assert answer["series"].keys() == {"in_per_s", "lag"}


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("series=no_such", "400", "series is 'no_such'; allowed: in_per_s, "),
        ("series=", "400", "series is ''"),
        ("series=lag&topic=orders", "400", "series is 'lag'; allowed: in_per_s, in_bytes_per_s"),
        ("group=g", "400", "topic is missing"),
        ("topic=", "400", "topic is ''"),
        ("step_s=0", "400", "step_s is '0'; allowed: 1 to 86400"),
        ("step_s=x", "400", "step_s is 'x'"),
        ("forwarded=1&step_s=1", "400", "from_ms is None, which is too long ago"),
        ("from_ms=-1", "400", "from_ms is '-1'"),
        ("topic=quiet", "404", "no history of topic 'quiet' is recorded"),
        ("topic=orders&group=g", "404", "no history of the subscription of group 'g' to topic 'orders'"),
    ],
)
def test_what_the_history_rejects(query: str, status: str, text: str) -> None:
    process = SampledProcess()
    process.send(1)
    process.pass_seconds(2)
    answer_status, answer = process.request("/history", query)
    assert answer_status == status
    assert text in answer["error"]


def test_processes_answer_as_one_and_the_silent_are_named() -> None:
    other, others = SampledProcess(), OtherProcesses()
    server = AdminServer((HOST, 0), other.api.router)
    server.start()
    others.record_address(component_line("producer", HostPort(HOST, server.server_port)).strip())
    others.record_address(component_line("gone", HostPort(HOST, 1)).strip())
    process = SampledProcess(others)
    for each in (process, other):
        each.send(1)
        each.pass_seconds()
        each.send(4)
        each.pass_seconds()
    snapshot = decode(process.live.fetch_snapshot())
    assert snapshot["missing"] == {"gone": f"{HOST}:1"}
    assert snapshot["totals"]["in_per_s"] == 8
    assert snapshot["tails"]["values"]["in_per_s"][-1] == 8
    expected = process.live.versions.read()["topics"] + other.live.versions.read()["topics"]
    assert snapshot["versions"]["topics"] == expected
    status, answer = process.request("/history", "series=in_per_s&topic=orders&step_s=1")
    assert status == "200"
    assert answer["series"]["in_per_s"][-1] == 8
    assert answer["missing"] == {"gone": f"{HOST}:1"}
    server.stop(timeout=0)


def test_a_failing_snapshot_is_an_error_and_not_an_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    process = SampledProcess()
    process.live.fetch_snapshot()
    process.clock.advance(2.0)
    monkeypatch.setattr(process.live.versions, "read", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        process.live.fetch_snapshot()


def test_after_the_end_nobody_can_watch() -> None:
    process = SampledProcess()
    process.live.close()
    process.live.close()
    assert process.request("/events")[0] == "503"
