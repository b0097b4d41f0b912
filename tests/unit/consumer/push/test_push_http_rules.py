"""HTTP push: the bytes of a request, the meaning of an answer, and sending slower."""

from __future__ import annotations

from itertools import pairwise
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy_consumer.push.actions.job import ActionJob
from proxy_consumer.push.actions.targets import parse_url
from proxy_consumer.push.sinks import http
from proxy_consumer.push.sinks.http import Meaning, Permits, read_answer


def job(properties: dict[bytes, bytes] | None = None, key: bytes = b"k") -> ActionJob:
    return ActionJob(key, b"", b"body", properties or {})


# --- the request


def test_the_body_is_a_form() -> None:
    params = [("params", "a b&ü"), ("carrera_msg_key", None), ("empty", "")]
    assert http.encode_form(params, 3) == b"params=a+b%26%C3%BC&carrera_msg_key&empty=&carrera_req_cnt=3"


TEXT = st.text(st.characters(exclude_categories=("Cs",)))


@given(st.lists(st.tuples(TEXT.filter(bool), TEXT)), st.integers(0, 9))
def test_a_form_is_read_back_as_it_was(params: list[tuple[str, str]], requests: int) -> None:
    body = http.encode_form(params, requests).decode()
    pairs = parse_qsl(body, keep_blank_values=True, strict_parsing=True)
    assert pairs == [*params, ("carrera_req_cnt", str(requests))]


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://h", "/?n=a%20b%2F%26"),
        ("http://h/p", "/p?n=a%20b%2F%26"),
        ("http://h/p?x=1", "/p?x=1&n=a%20b%2F%26"),
        ("http://h/p?x=1&", "/p?x=1&n=a%20b%2F%26"),
    ],
)
def test_query_values_go_behind_those_of_the_url(url: str, target: str) -> None:
    assert http.request_target(parse_url(url), [("n", "a b/&")]) == target
    assert http.request_target(parse_url(url), []) == parse_url(url).target


@given(st.lists(st.tuples(TEXT.filter(bool), TEXT), min_size=1))
def test_a_query_is_read_back_as_it_was(query: list[tuple[str, str]]) -> None:
    target = http.request_target(parse_url("http://h/p"), query)
    assert parse_qsl(urlsplit(target).query, keep_blank_values=True) == query


@pytest.mark.parametrize(
    ("headers", "sent", "ignored"),
    [
        (b'{"X-A": "1", "x-b": 2}', {"X-A": "1", "x-b": "2"}, 0),
        (b'{\n  "X-A" : "1"\n}\n', {"X-A": "1"}, 0),
        (b'{"Host": "evil", "Content-Length": 1, "X-A": "1"}', {"X-A": "1"}, 2),
        (b'{"X-A": "1\\r\\nX-B: 2", "a b": "1", "X-C": null}', {}, 3),
        (b"not json", {}, 1),
        (b"[1]", {}, 1),
    ],
)
def test_headers_that_a_message_brings(headers: bytes, sent: dict[str, str], ignored: int) -> None:
    assert http.property_headers(job({b"carrera_headers": headers})) == (sent, ignored)
    assert http.property_headers(job()) == ({}, 0)


def test_targets_that_a_message_names() -> None:
    named = {b"carrera_http_callback_url": b"http://a/<> http://b/ <>"}
    assert http.callback_urls(job(named)) == ["http://a/", "http://b/"]
    assert http.callback_urls(job()) == []


UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"


@pytest.mark.parametrize(
    ("key", "chronos", "requests"),
    [
        (f"1700000000-3-1700100000-9-4-10-0-{UUID}", True, 4),
        (f"1700000000-4-1700100000-9-0-3-0-{UUID}", True, 0),
        (f"1700000000-2-1700172800-0-0-0-0-{UUID}", True, 7),
        (f"1700000000-3-1700100000-9-4-10-0-{UUID}", False, 7),
        ("k", True, 7),
    ],
)
def test_a_loop_message_says_which_occurrence_it_is(key: str, chronos: bool, requests: int) -> None:
    properties = {b"from_chronos": b"from_chronos"} if chronos else {}
    assert http.request_count(job(properties, key.encode()), 7) == requests


# --- the answer


@pytest.mark.parametrize(
    ("status", "body", "meaning"),
    [
        (200, b"", Meaning.DONE),
        (200, b" \n", Meaning.DONE),
        (200, b"<html>", Meaning.DONE),
        (200, b"[1]", Meaning.DONE),
        (200, b"{}", Meaning.DONE),
        (200, b'{"errno": null}', Meaning.DONE),
        (200, b'{"errno": ""}', Meaning.DONE),
        (200, b'{"errno": 0}', Meaning.DONE),
        (200, b'{"errno": "0"}', Meaning.DONE),
        (200, b'{"errno": 1000001}', Meaning.DONE),
        (200, b'{"errno": "1000001"}', Meaning.DONE),
        (200, b'{"errno": 1000000}', Meaning.SLOWER),
        (200, b'{"errno": "1000002"}', Meaning.LATER),
        (200, b'{"errno": 1}', Meaning.FAIL),
        (200, b'{"errno": "-5"}', Meaning.FAIL),
        (200, b'{"errno": "no"}', Meaning.GIVE_UP),
        (200, b'{"errno": {}}', Meaning.GIVE_UP),
        (200, b'{"errno": true}', Meaning.GIVE_UP),
        (201, b'{"errno": 0}', Meaning.ERROR),
        (204, b"", Meaning.ERROR),
        (302, b"", Meaning.ERROR),
        (500, b"", Meaning.ERROR),
    ],
)
def test_what_an_answer_means(status: int, body: bytes, meaning: Meaning) -> None:
    assert read_answer(status, body).meaning is meaning


@given(st.binary())
@example(b"\x1c0")
def test_no_answer_breaks_the_reader(body: bytes) -> None:
    assert read_answer(200, body).meaning in Meaning
    assert read_answer(200, msgspec.json.encode({"errno": body.decode("latin-1")})).meaning in Meaning


# --- sending slower


def test_after_slow_down_the_next_r_sends_take_ten_permits_each() -> None:
    permits, now = Permits(), 1000.0
    for _ in range(5):
        assert permits.next_slot(now) == now
    permits.slow_down(now + 0.5, 0)  # five in the present second: R = 5
    slots = [permits.next_slot(now + 0.5) for _ in range(7)]
    assert slots == pytest.approx([now + 0.5 + step for step in (2, 4, 6, 8, 10, 0, 0)])


def test_the_limit_of_the_subscription_is_the_rate() -> None:
    permits = Permits()
    permits.slow_down(0.0, 100)
    slots = [permits.next_slot(0.0) for _ in range(101)]
    assert slots[0] == pytest.approx(0.1)
    assert slots[99] == pytest.approx(10.0)
    assert slots[100] == 0.0


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=60))
def test_slots_never_lie_in_the_past_nor_closer_than_the_rate_allows(steps: list[tuple[float, bool]]) -> None:
    permits, now = Permits(), 0.0
    slow: list[float] = []
    for wait, slower in steps:
        now += wait
        if slower:
            permits.slow_down(now, 20)
            slow = slow[-1:]
        slot = permits.next_slot(now)
        assert slot >= now
        if slot > now:
            slow.append(slot)
    assert all(later - earlier >= 0.5 - 1e-6 for earlier, later in pairwise(slow))
