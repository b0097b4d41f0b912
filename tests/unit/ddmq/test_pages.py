"""Listings come in parts, without a gap while others come and go."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.memory import MemoryBackend
from backend.records import TopicInfo
from ddmq.server.admin.api import AdminApi
from ddmq.server.http.routing import ALL_ITEMS, Page
from ddmq_common.clock import ManualClock
from ddmq_common.metrics.registry import Registry

FAR = 1e12


def test_a_page_goes_on_behind_a_name_that_may_have_gone() -> None:
    names = ["d", "a", "c", "b"]
    assert ALL_ITEMS.of(names, str) == ["a", "b", "c", "d"]
    assert Page("", 2).of(names, str) == ["a", "b"]
    assert Page("b", 2).of(names, str) == ["c", "d"]
    names.remove("b")
    assert Page("b", 2).of(names, str) == ["c", "d"]
    assert Page("d", 2).of(names, str) == []


@pytest.mark.parametrize(("path", "key"), [("/topics", "topic"), ("/dlq", "group")])
def test_listings_in_parts_are_the_whole(path: str, key: str) -> None:
    backend = MemoryBackend(ManualClock())
    for number in range(5):
        for prefix in ("t", "%DLQ%g"):
            backend.put_topic(TopicInfo(f"{prefix}{number}", 0, 1), FAR).wait(5)
    api = AdminApi(backend, None, Registry(), ManualClock(), backend.health)

    def get_json(query: str) -> Any:
        environ = {"REQUEST_METHOD": "GET", "RAW_URI": path, "QUERY_STRING": query}
        return msgspec.json.decode(b"".join(api.router(environ, lambda status, headers: None)))

    complete = get_json("")
    first = get_json("count=2")
    second = get_json(f"count=2&after={first[-1][key]}")
    third = get_json(f"count=2&after={second[-1][key]}")
    assert [len(first), len(second), len(third)] == [2, 2, 1]
    assert first + second + third == complete
    assert "count is" in get_json("count=x")["error"]
    backend.close()
