"""Lists and counts of delayed messages while a shard moves between processes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ddmq.server.admin.contract.queries import DelayCountQuery, DelaysQuery
from ddmq.server.delays.lists import DelayLists
from ddmq.server.delays.owners import DelayOwners
from ddmq.server.http.paging import PageRequest
from ddmq.server.http.parameters import read_query
from ddmq.server.http.routing import AdminRequest
from ddmq_common.errors import CallerError, StorageError
from delay_service.config import DelayConfig
from delay_service.store.port import Pending, Scan
from tests.service.delay.delay_rig import DelayRig

HOUR_MS = 3_600_000
MOVING = 2  # the shard that moves


class MovingShard:
    """A process with three shards and 30 messages, and what happens when it reads the first store."""

    def __init__(self) -> None:
        self.rig = DelayRig(DelayConfig(shards=3))
        for number in range(30):
            self.rig.add(number, self.rig.clock.wall_ms() + HOUR_MS + number)
        self.rig.settle()
        self.shards = dict(self.rig.service.shards)  # those that the process owns
        service: Any = SimpleNamespace(shards=self.shards)
        self.owners = DelayOwners(self.rig.backend, service, self.rig.clock)
        self.lists = DelayLists(self.owners)
        self._shard = self.shards[MOVING]
        context = self._shard.context
        assert context is not None
        self.moving = sum(context.store.counts().values())

    def lose(self) -> None:
        """Let another process own the shard."""
        del self.shards[MOVING]

    def get(self) -> None:
        """Let this process own the shard, which is open."""
        self.shards[MOVING] = self._shard

    def at_first_scan(self, number: int, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
        """Call `act` before the store of a shard is read for the first time."""
        context = self.shards[number].context
        assert context is not None
        scan, acts = context.store.scan, [act]

        def scan_later(choice: Scan) -> list[Pending]:
            while acts:
                acts.pop()()
            return scan(choice)

        monkeypatch.setattr(context.store, "scan", scan_later)

    def list(self) -> dict[str, Any]:
        request = AdminRequest({}, DelaysQuery(count=100), {}, "GET", "/delay/messages", is_forwarded=True)
        return self.lists.list_messages(request)

    def count(self) -> dict[str, Any]:
        request = AdminRequest({}, DelayCountQuery(from_ms=1), {}, "GET", "/delay/count", is_forwarded=True)
        return self.lists.count_messages(request)


@pytest.fixture
def moving() -> MovingShard:
    return MovingShard()


@pytest.mark.parametrize("ask", ["list", "count"])
def test_a_shard_that_comes_during_an_answer_is_not_covered_by_it(
    moving: MovingShard, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    moving.lose()
    moving.at_first_scan(0, moving.get, monkeypatch)
    answer = getattr(moving, ask)()
    assert (answer["elsewhere"], answer["not_open"]) == ([MOVING], [])
    number = len(answer["messages"]) if ask == "list" else answer["count"]
    assert number == 30 - moving.moving < 30
    assert answer.get("exact", False) is False
    again = getattr(moving, ask)()
    assert (again["elsewhere"], len(again.get("messages", [0] * again.get("count", 0)))) == ([], 30)
    moving.rig.close()


@pytest.mark.parametrize("ask", ["list", "count"])
def test_a_shard_that_leaves_while_it_is_read_is_left_out(
    moving: MovingShard, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    def close_store() -> None:
        moving.lose()
        raise StorageError("the delay store was closed while it was read")

    moving.at_first_scan(MOVING, close_store, monkeypatch)
    answer = getattr(moving, ask)()
    assert (answer["elsewhere"], answer["not_open"]) == ([MOVING], [])
    assert len(answer.get("messages", [0] * answer.get("count", 0))) == 30 - moving.moving
    moving.rig.close()


def test_a_store_that_cannot_be_read_is_an_error(
    moving: MovingShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise StorageError("the disk is broken")

    moving.at_first_scan(MOVING, fail, monkeypatch)
    with pytest.raises(StorageError, match="broken"):
        moving.list()
    moving.rig.close()


def test_rows_of_another_owner_have_the_fields_of_the_requested_form(
    moving: MovingShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = moving.list()["messages"]
    rows = [{name: value for name, value in row.items() if value != ""} for row in own]
    damaged = {"due_ms": rows[-1]["due_ms"] + 1, "shard": 0, "offset": 999, "error": "damaged"}
    answer = {"items": [*rows, damaged], "orders_waiting": 0, "not_open": [], "elsewhere": [], "total": 31}
    monkeypatch.setattr(moving.owners, "timers", None)
    monkeypatch.setattr(moving.owners, "fetch_answers", lambda *_, **__: [answer])
    request = AdminRequest({}, DelaysQuery(count=100), {}, "GET", "/delay/messages")
    listed = moving.lists.list_messages(request)["messages"]
    assert listed == [*own, damaged | {"id": ""}]
    assert any("" in row.values() for row in own), "an absent tag is an empty text"
    moving.rig.close()


@pytest.mark.parametrize("numbers", [(10**30, 1, 1), (1, 10**30, 1), (-1, 0, 0), (1 << 63, 0, 0)])
def test_a_forged_position_is_the_error_of_the_client(
    moving: MovingShard, numbers: tuple[int, int, int]
) -> None:
    page = PageRequest(sort="due_ms")
    request = AdminRequest({}, DelaysQuery(form=2), {}, "GET", "/delay/messages")
    with pytest.raises(CallerError, match="allowed: `next` of an earlier answer"):
        moving.lists.page_messages(page._replace(after=page.encode_position(numbers)), request)
    most = page._replace(after=page.encode_position(((1 << 63) - 1,) * 3))
    assert moving.lists.page_messages(most, request._replace(is_forwarded=True)).items == []
    moving.rig.close()


def test_the_count_of_a_single_owner_continues_at_any_process(
    moving: MovingShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch_answers(
        request: AdminRequest, path: str, texts: dict[str, str], *keys: str
    ) -> list[dict[str, Any]]:
        forwarded = request._replace(query=read_query(DelayCountQuery, texts), is_forwarded=True)
        return [moving.lists.count_messages(forwarded)]

    elsewhere = DelayOwners(moving.rig.backend, None, moving.rig.clock)
    monkeypatch.setattr(elsewhere, "fetch_answers", fetch_answers)
    counts, after = [], None
    while True:
        query = DelayCountQuery(from_ms=1, count=12, after=after)
        answer = DelayLists(elsewhere).count_messages(AdminRequest({}, query, {}, "GET", "/delay/count"))
        counts.append((answer["count"], answer["exact"]))
        after = answer["next"]
        if after is None:
            break
    assert counts == [(12, False), (12, False), (6, True)]
    moving.rig.close()
