"""Delayed messages of several owners of shards are listed and counted as one, also while an owner is away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import msgspec
import pytest

from ddmq.server.admin.contract.queries import DelayCountQuery, DelayHistogramQuery, DelaysQuery
from ddmq.server.delays.histogram import answer_histogram
from ddmq.server.delays.lists import ORDER, DelayLists
from ddmq.server.delays.owners import DelayOwners
from ddmq.server.http.routing import AdminRequest
from ddmq_common.metrics.registry import Registry
from delay_service.config import DelayConfig
from delay_service.service import DelayService
from tests.service.delay.delay_rig import DelayRig
from tests.service.delay.hand_alarm import HandAlarms

SHARDS, MESSAGES = 4, 40
MINUTE_MS = 60_000


class LinkedOwners(DelayOwners):
    """The shards of one service. Answers of the `linked` one arrive without HTTP; none while it is away."""

    linked: DelayLists
    is_away = False

    def fetch_answers(
        self, request: AdminRequest, path: str, query: Mapping[str, str], *keys: str
    ) -> list[dict[str, Any]]:
        if self.is_away:
            return []
        kind = DelayCountQuery if path == "/delay/count" else DelaysQuery
        asked = AdminRequest({}, msgspec.convert(query, kind, strict=False), {}, is_forwarded=True)
        if path == "/delay/count":
            return [self.linked.count_messages(asked)]
        page = self.linked.page_messages(
            ORDER._replace(size=asked.query.count, after=query.get("after", "")), asked
        )
        return [{"items": page.items, "next": page.next, "total": page.total, **page.more}]


class TwoOwners:
    """Two services that share the shards, and what waits for due times a minute apart."""

    def __init__(self) -> None:
        self.rig = DelayRig(DelayConfig(shards=SHARDS))
        rig = self.rig
        self.other = DelayService(
            rig.backend, rig.config, Registry(), rig.clock, rig.disks.open, alarms=HandAlarms()
        )
        self.other.start()
        rig.until(lambda: rig.ring() or len(self.other.shards) == SHARDS // 2, "both own shards")  # type: ignore[func-returns-value]
        rig.until(lambda: rig.ring() or self.other.health().ready, "the shards have moved")  # type: ignore[func-returns-value]
        self.due_ms = [rig.clock.wall_ms() + (number + 60) * MINUTE_MS for number in range(MESSAGES)]
        for number, due_ms in enumerate(self.due_ms):
            rig.add(number, due_ms)
        rig.settle()
        self.owners = LinkedOwners(rig.backend, rig.service, rig.clock)
        self.owners.linked = DelayLists(DelayOwners(rig.backend, self.other, rig.clock))
        self.lists = DelayLists(self.owners)

    def close(self) -> None:
        self.other.close()
        self.rig.close()


@pytest.fixture
def two() -> Iterator[TwoOwners]:
    both = TwoOwners()
    yield both
    both.close()


def count(two: TwoOwners, **query: Any) -> dict[str, Any]:
    return two.lists.count_messages(AdminRequest({}, DelayCountQuery(**query), {}))


def test_a_count_of_two_owners_stops_at_its_bound(two: TwoOwners) -> None:
    start = two.due_ms[0]
    assert (count(two)["count"], count(two)["exact"]) == (MESSAGES, True)
    most = count(two, from_ms=start, count=MESSAGES)
    assert (most["count"], most["exact"], most["next"]) == (MESSAGES, True, None)
    for bound in (1, 10, MESSAGES - 1):
        cut = count(two, from_ms=start, count=bound)
        assert (cut["count"], cut["exact"]) == (bound, False)
    two.owners.is_away = True
    alone = count(two)
    assert 0 < alone["count"] < MESSAGES
    assert (alone["exact"], len(alone["elsewhere"])) == (False, SHARDS // 2)


def test_a_list_that_passed_shards_over_says_so_until_its_end(two: TwoOwners) -> None:
    random = Random(20_261_201)
    for away_on in ([], [0], [2], [1, 3], [0, 1, 2, 3, 4, 5, 6, 7]):
        listed: list[int] = []
        page_request = ORDER._replace(size=random.choice((5, 7)))
        missed = False
        for number in range(MESSAGES):
            two.owners.is_away = number in away_on
            missed |= two.owners.is_away
            page = two.lists.page_messages(page_request, AdminRequest({}, DelaysQuery(form=2), {}))
            assert (page.exact, bool(page.more["elsewhere"])) == (not missed, missed)
            listed += [row["due_ms"] for row in page.items]
            if page.next is None:
                break
            page_request = page_request._replace(after=page.next)
        assert listed == sorted(set(listed))
        assert (listed == two.due_ms) == (not away_on), "what was passed over is missing"


class MovingOwners(DelayOwners):
    """A shard gets another owner during each request."""

    moved = 0

    def list_other_owners(self) -> dict[int, str]:
        self.moved += 1
        return {} if self.moved % 2 else {3: ""}


def test_a_histogram_during_which_a_shard_moves_is_not_exact() -> None:
    rig = DelayRig(DelayConfig(shards=SHARDS))
    query = DelayHistogramQuery(from_ms=0, to_ms=MINUTE_MS)
    request = AdminRequest({}, query, {}, "GET", "/delay/histogram")
    assert answer_histogram(DelayOwners(rig.backend, rig.service, rig.clock), request).exact
    assert not answer_histogram(MovingOwners(rig.backend, rig.service, rig.clock), request).exact
    rig.close()
