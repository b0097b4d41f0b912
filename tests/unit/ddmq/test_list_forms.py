"""Form 2 of the admin API's answers: lists in pages, selected fields, and no value in place of an absent
one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from backend.memory import MemoryBackend
from backend.records import NewRecord, TopicInfo
from ddmq.server.admin.api import AdminApi
from ddmq.server.admin.contract.forms import page_form, second_form, to_second_form
from ddmq.server.admin.contract.structs import answers, group_answers
from ddmq.server.admin.routes import ROUTES
from ddmq_common.clock import ManualClock
from ddmq_common.delivery import encode
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import dead_letter_topic, retry_topic
from tests.support.admin_contract import check_answer

FAR = 1e12
PARKED: dict[str, Any] = {
    "key": '"k"', "topic": "", "queue_id": -1, "offset": -1, "since_ms": 0, "attempts": 0, "state": "parked",
    "error": "", "waiting": 0, "more": False, "reason": "operator", "client": "", "address": "",
    "leased_ms": 0, "until_ms": 0, "extended": False,
}  # fmt: skip


class ServedBackend:
    """The admin API over a memory engine."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.backend = MemoryBackend(self.clock)
        self.api = AdminApi(self.backend, None, Registry(), self.clock, self.backend.health)

    def request(self, path: str, **query: Any) -> tuple[int, Any]:
        statuses: list[str] = []
        environ = {"REQUEST_METHOD": "GET", "RAW_URI": path, "QUERY_STRING": urlencode(query)}
        answer = b"".join(self.api.router(environ, lambda status, headers: statuses.append(status)))
        return int(statuses[0][:3]), msgspec.json.decode(answer)

    def get(self, path: str, **query: Any) -> Any:
        status, answer = self.request(path, **query)
        assert status == 200, answer
        check_answer("GET", f"{path}?{urlencode(query)}", status, answer) if "fields" not in query else None
        return answer

    def walk(self, path: str, **query: Any) -> Iterator[list[Any]]:
        """The items of page after page."""
        while True:
            answer = self.get(path, form=2, **query)
            yield answer["items"]
            if "next" not in answer:
                return
            query["after"] = answer["next"]

    def make_topic(self, name: str, queues: int = 1) -> None:
        self.backend.put_topic(TopicInfo(name, 0, queues), FAR).wait(5)

    def delete_topic(self, name: str) -> None:
        self.backend.delete_topic(name, FAR).wait(5)

    def append(self, topic: str, queue: int, key: str) -> None:
        record = NewRecord(topic, queue, b"\x01" * 16, 1, encode(key.encode(), b"v", b"", None))
        self.backend.append([record], FAR).wait(5)


@pytest.fixture
def served() -> Iterator[ServedBackend]:
    served = ServedBackend()
    yield served
    served.backend.close()


@pytest.mark.parametrize("sort", ["topic", "-topic"])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_topics_that_stay_are_listed_once_while_others_come_and_go(
    served: ServedBackend, sort: str, count: int
) -> None:
    stable = [f"s{number}" for number in range(7)]
    for name in stable:
        served.make_topic(name)
    listed: list[str] = []
    for step, items in enumerate(served.walk("/topics", count=count, sort=sort)):
        listed += [item["topic"] for item in items]
        served.make_topic(f"s{step}x")
        served.make_topic(f"a{step}")
        if step:
            served.delete_topic(f"s{step - 1}x")
    assert [name for name in listed if name in stable] == sorted(stable, reverse=sort[0] == "-")
    assert len(set(listed)) == len(listed)


@pytest.mark.parametrize("sort", ["-stored_ms", "stored_ms"])
@pytest.mark.parametrize("count", [1, 2, 5, 100])
def test_messages_are_listed_once_while_others_arrive_even_if_the_clock_is_set_back(
    served: ServedBackend, sort: str, count: int
) -> None:
    served.make_topic("t", 3)
    for number, step_s in enumerate([0.05, 0.01, 0, -0.04, 0, 0.05, -0.06, 0, 0.08, -0.03]):
        served.clock.step_wall(step_s)
        served.append("t", number * number % 3, f"stays{number}")
    listed = []
    for step, items in enumerate(served.walk("/topics/t/messages", count=count, sort=sort)):
        assert len(items) <= count
        listed += [item["key"] for item in items]
        if step < 5:
            served.append("t", step % 3, f"new{step}")
    assert len(set(listed)) == len(listed)
    assert {key for key in listed if key.startswith("stays")} == {f"stays{number}" for number in range(10)}


def test_messages_are_searched_by_a_text_in_the_key(served: ServedBackend) -> None:
    served.make_topic("t", 2)
    for number in range(20):
        served.append("t", number % 2, f"k{number}")
    listed = [
        item["key"] for items in served.walk("/topics/t/messages", count=2, text="k1") for item in items
    ]
    assert sorted(listed) == sorted(f"k{number}" for number in (1, *range(10, 20)))


@pytest.mark.parametrize("sort", ["offset", "-offset"])
@pytest.mark.parametrize("count", [1, 3, 4, 100])
def test_dead_letters_of_several_queues_are_listed_once(served: ServedBackend, sort: str, count: int) -> None:
    topic = dead_letter_topic("G")
    served.make_topic(topic, 3)
    for number in range(10):
        served.append(topic, number % 3, f"k{number}")
    listed = []
    for items in served.walk("/dlq/G", count=count, sort=sort):
        assert len(items) <= count
        listed += [(item["queue"], item["offset"]) for item in items]
    assert len(listed) == 10
    assert len(set(listed)) == 10


def test_groups_with_dead_letters_are_listed_by_name(served: ServedBackend) -> None:
    for name in ("c", "a", "b"):
        served.make_topic(dead_letter_topic(name))
    served.append(dead_letter_topic("b"), 0, "k")
    pages = list(served.walk("/dlq", count=2))
    assert [[(row["group"], row["letters"]) for row in items] for items in pages] == [
        [("a", 0), ("b", 1)],
        [("c", 0)],
    ]
    assert "oldest_ms" not in pages[0][0], "a has none"


@pytest.mark.parametrize("count", [1, 3, 100])
def test_due_retries_are_listed_once_and_found_by_a_text(served: ServedBackend, count: int) -> None:
    topic = retry_topic("G")
    served.make_topic(topic, 2)
    for number in range(12):
        served.append(topic, number % 2, f"k{number}")
    for text, keys in ((None, range(12)), ("k1", (1, 10, 11)), ("none", ())):
        query = {"group": "G", "count": count} | ({} if text is None else {"text": text})
        pages = list(served.walk("/retries", **query))
        assert all(len(items) <= count for items in pages)
        listed = [item["key"] for items in pages for item in items]
        assert sorted(listed) == sorted(f"k{number}" for number in keys)
    whole = served.get("/retries", group="G", form=2, fields="key")
    assert (whole["total"], whole["exact"], whole["scanned"]) == (12, True, 12)
    assert set(whole["items"][0]) == {"key"}
    assert served.request("/retries", group="G", text="k1")[0] == 400, "the first form has no text"
    assert served.get("/retries", group="G", count=1)["next"], "nor another cursor than before"


def test_the_list_is_filtered_and_states_its_total(served: ServedBackend) -> None:
    for name in ("orders", "orders-old", "mail"):
        served.make_topic(name)
    answer = served.get("/topics", form=2, text="orders", count=1, fields="topic,queues")
    assert answer["items"] == [{"topic": "orders", "queues": 1}]
    assert (answer["total"], answer["exact"], answer["missing"]) == (2, True, {})


@pytest.mark.parametrize(
    ("path", "query", "text"),
    [
        ("/topics", {"sort": "topic"}, "sort is not for form 1 of this list; add form=2"),
        ("/topics", {"fields": "topic"}, "fields is not for form 1"),
        ("/topics", {"form": 2, "sort": "messages"}, "sort is 'messages'; allowed: topic, -topic"),
        ("/topics", {"form": 2, "count": 0}, "count is 0; allowed: 1 or more"),
        ("/topics", {"form": 2, "after": "orders"}, "after is 'orders'; allowed: `next` of"),
        ("/topics", {"form": 2, "fields": "topik"}, "'topik' is no field of this request; did you mean"),
        ("/topics", {"form": 3}, "form is '3'; allowed: 1, 2"),
        ("/dlq/G", {"form": 2, "from": 3}, "from is not for form 2 of this list (allowed: count,"),
        ("/dlq/G", {"form": 2, "order": "newest"}, "order is not for form 2 of this list; use sort"),
        ("/topics", {"form": 2, "limit": 3}, "'limit' is no query name of this request; did you mean 'count"),
        ("/topics", {"form": 2, "cursor": "x"}, "did you mean 'after'?"),
        ("/topics", {"form": 2, "order": "topic"}, "did you mean 'sort'?"),
        ("/topics", {"form": 2, "qqqqq": "x"}, "'qqqqq' is no query name of this request (allowed: after,"),
        ("/topics/t", {"fields": "quues"}, "did you mean 'queues'?"),
    ],
)  # fmt: skip
def test_what_a_form_does_not_have_is_rejected(
    served: ServedBackend, path: str, query: dict[str, Any], text: str
) -> None:
    served.make_topic("t")
    status, answer = served.request(path, **query)
    assert status == 400
    assert text in answer["error"]


def test_one_object_has_the_requested_fields_in_both_forms(served: ServedBackend) -> None:
    served.make_topic("t")
    assert served.get("/topics/t", fields="queues,delays_held_since_ms") == {
        "queues": 1,
        "delays_held_since_ms": None,
    }
    assert served.get("/topics/t", form=2, fields="queues,delays_held_since_ms") == {"queues": 1}


def test_form_1_is_as_before(served: ServedBackend) -> None:
    served.make_topic("t")
    assert [row["body_bytes_max"] for row in served.get("/topics")] == [None]
    assert served.get("/findings")["missing"] == []
    assert isinstance(served.get("/delay/levels"), list)
    assert served.get("/transactions")["whole"] is True


def test_absent_values_are_absent() -> None:
    row = to_second_form(group_answers.BlockedKeyRow, PARKED)
    assert row == {
        "key": '"k"', "attempts": 0, "state": "parked", "waiting": 0, "more": False, "reason": "operator",
        "extended": False,
    }  # fmt: skip
    present = PARKED | {"topic": "t", "queue_id": 0, "offset": 0, "since_ms": 7}
    row = to_second_form(group_answers.BlockedKeyRow, present)
    assert (row["queue_id"], row["offset"], row["since_ms"]) == (0, 0, 7)


def test_absent_values_inside_of_others_are_absent_too() -> None:
    group = {"group": "g", "created_ms": 0, "blocked_keys": [PARKED], "subscriptions": []}
    answer = to_second_form(group_answers.GroupShownAnswer, group | {"blocked_keys_error": ""})
    assert answer.keys() == {"group", "blocked_keys", "subscriptions"}
    assert "offset" not in answer["blocked_keys"][0]


def test_no_field_of_form_2_may_be_null() -> None:
    kinds = [second_form(route.answer) for route in ROUTES if route.query is not None]
    kinds += [page_form(route.listing.item, route.listing.more) for route in ROUTES if route.listing]
    _, components = msgspec.json.schema_components([kind for kind in kinds if isinstance(kind, type)])
    nullable = {
        (name, field)
        for name, schema in components.items()
        if name.endswith(("2", "Page")) and "History" not in name
        for field, described in schema.get("properties", {}).items()
        if {"type": "null"} in described.get("anyOf", ())
    }
    assert nullable == set()


def test_a_required_field_stays_required() -> None:
    fields = {field.name: field.required for field in msgspec.structs.fields(second_form(answers.TopicRow))}
    assert (fields["topic"], fields["body_bytes_max"], fields["retention_ms"]) == (True, False, False)
