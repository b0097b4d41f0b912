"""A change with If-Match is made only to what its sender has seen."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import gevent
import msgspec
import pytest

from backend.memory import MemoryBackend
from backend.records import CommitBatch, NewRecord, TopicInfo
from ddmq.server.admin.api import AdminApi
from ddmq.server.admin.contract.versions import NameLocks, check_version, group_version, topic_version
from ddmq.server.http.routing import VersionConflictError
from ddmq_common.clock import ManualClock
from ddmq_common.delivery import encode
from ddmq_common.metrics.registry import Registry
from proxy_consumer.groups.group import group_key, subscription_key

FAR = 1e12


@pytest.fixture
def backend() -> Iterator[MemoryBackend]:
    opened = MemoryBackend(ManualClock())
    opened.put_topic(TopicInfo("orders", 0, 2), FAR).wait(5)
    yield opened
    opened.close()


@pytest.mark.parametrize("if_match", ["", '"v1"', '"v1",', 'W/"v1"', "v1", '"v0", "v1"', "*"])
def test_a_version_that_is_allowed_passes(if_match: str) -> None:
    check_version("topic 'a'", "v1", if_match)


@pytest.mark.parametrize(
    ("version", "if_match"),
    [
        ("v1", '"v0"'),
        ("v1", '""'),
        ("v1", ","),
        ("", '"v1"'),
        ("", "*"),
        ("", '""'),
        ("", '"v1",'),
        ("", ","),
    ],
)
def test_another_version_does_not(version: str, if_match: str) -> None:
    with pytest.raises(VersionConflictError, match="topic 'a' was changed meanwhile"):
        check_version("topic 'a'", version, if_match)


def test_what_does_not_exist_may_be_created() -> None:
    check_version("topic 'a'", "", "")


def call(api: AdminApi, method: str, body: bytes = b"", if_match: str | None = None) -> tuple[int, str, Any]:
    """Status, ETag and answer of a request for the topic."""
    environ: dict[str, Any] = {"REQUEST_METHOD": method, "RAW_URI": "/topics/orders", "QUERY_STRING": ""}
    environ |= {"CONTENT_LENGTH": str(len(body)), "CONTENT_TYPE": "application/json"}
    environ |= {"wsgi.input": io.BytesIO(body)}
    environ |= {} if if_match is None else {"HTTP_IF_MATCH": if_match}
    responses: list[tuple[int, str]] = []

    def start(status: str, headers: list[tuple[str, str]]) -> None:
        responses.append((int(status[:3]), dict(headers).get("ETag", "")))

    answer = msgspec.json.decode(b"".join(api.router(environ, start)))
    return *responses[0], answer


def api_over(backend: MemoryBackend) -> AdminApi:
    return AdminApi(backend, None, Registry(), ManualClock(), backend.health)


def test_the_second_of_two_operators_is_told(backend: MemoryBackend) -> None:
    api = api_over(backend)
    _, seen, _ = call(api, "GET")
    status, after, _ = call(api, "POST", b'{"create": false, "queues": 3}', seen)
    assert (status, after != seen) == (200, True)
    status, _, answer = call(api, "POST", b'{"create": false, "readable": false}', seen)
    assert status == 412
    assert f"topic 'orders' was changed meanwhile: its ETag is {after}, If-Match is {seen}" in answer["error"]
    assert call(api, "GET")[1] == after, "nothing was changed"
    assert call(api, "POST", b'{"create": false, "readable": false}', after)[0] == 200
    assert call(api, "DELETE", if_match=seen)[0] == 412
    assert call(api, "DELETE")[0] == 200
    assert call(api, "GET")[0] == 404


@pytest.mark.parametrize("if_match", ["", " "])
def test_a_blank_if_match_changes_nothing(backend: MemoryBackend, if_match: str) -> None:
    api = api_over(backend)
    status, _, answer = call(api, "POST", b'{"create": false, "queues": 3}', if_match)
    assert status == 400
    assert answer["error"].startswith(f"If-Match is {if_match!r}; allowed: ETags")
    assert call(api, "GET")[2]["queues"] == 2


def test_a_deleted_topic_is_not_created_by_a_list_with_an_empty_member(backend: MemoryBackend) -> None:
    api = api_over(backend)
    _, seen, _ = call(api, "GET")
    call(api, "DELETE")
    assert call(api, "POST", b'{"queues": 3}', f"{seen},")[0] == 412
    assert call(api, "GET")[0] == 404


def test_only_one_of_two_changes_of_the_same_moment_is_made(backend: MemoryBackend) -> None:
    """Both are on their way before either is answered."""
    api = api_over(backend)
    _, seen, _ = call(api, "GET")
    bodies = (b'{"create": false, "queues": 3}', b'{"create": false, "readable": false}')
    changes = [gevent.spawn(call, api, "POST", body, seen) for body in bodies]
    gevent.joinall(changes, timeout=30)
    assert sorted(change.value[0] for change in changes) == [200, 412]


@pytest.mark.parametrize("setting", [b'"trace_one_in": 7', b'"hold_delays": true'])
def test_a_state_that_no_file_has_is_part_of_the_version(backend: MemoryBackend, setting: bytes) -> None:
    api = api_over(backend)
    _, seen, _ = call(api, "GET")
    assert call(api, "POST", b'{"create": false, %s}' % setting, seen)[1] not in ("", seen)


def test_messages_do_not_change_the_version(backend: MemoryBackend) -> None:
    version = topic_version(backend, "orders")
    backend.append([NewRecord("orders", 0, bytes(16), 1, encode(b"k", b"hello", b"", {}), b"k")], FAR).wait(5)
    assert topic_version(backend, "orders") == version


def put_settings(backend: MemoryBackend, **settings: bytes | None) -> None:
    backend.commit(CommitBatch(settings=settings), FAR).wait(5)


def test_the_version_of_a_group_is_that_of_its_subscriptions(backend: MemoryBackend) -> None:
    assert group_version(backend, "billing") == ""
    put_settings(backend, **{group_key("billing"): b"{}", subscription_key("billing", "orders"): b"{}"})
    created = group_version(backend, "billing")
    put_settings(backend, **{subscription_key("billing-2", "orders"): b"{}"})
    assert group_version(backend, "billing") == created
    put_settings(backend, **{subscription_key("billing", "orders"): b'{"a": 1}'})
    changed = group_version(backend, "billing")
    put_settings(backend, **{subscription_key("billing", "paid"): b"{}"})
    assert len({"", created, changed, group_version(backend, "billing")}) == 4


def test_a_condition_that_nothing_can_meet_is_rejected(backend: MemoryBackend) -> None:
    """What is not versioned must not be changed as if the condition were met."""
    api = api_over(backend)
    environ: dict[str, Any] = {"REQUEST_METHOD": "POST", "RAW_URI": "/dlq/g/purge", "QUERY_STRING": ""}
    environ |= {"CONTENT_LENGTH": "13", "CONTENT_TYPE": "application/json", "HTTP_IF_MATCH": '"v"'}
    environ |= {"wsgi.input": io.BytesIO(b'{"all": true}')}
    statuses: list[str] = []
    answer = b"".join(api.router(environ, lambda status, _: statuses.append(status)))
    assert (statuses, b"If-Match is not for this request" in answer) == (["400 Bad Request"], True)


def test_locks_of_names_are_forgotten() -> None:
    locks = NameLocks()
    with locks.hold_lock("topic", "a"), locks.hold_lock("topic", "b"):
        assert len(locks) == 2
    assert len(locks) == 0
