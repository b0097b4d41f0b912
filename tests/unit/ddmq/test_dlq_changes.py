"""Dead letters over the memory engine: which are open, and each is sent once whoever asks how often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.internal_topics import dead_record
from backend.progress.ack_map import AckMap
from backend.records import (
    FLAG_ONE_GROUP,
    ONE_GROUP,
    Bounds,
    CommitBatch,
    ProgressView,
    QueueRef,
    StoredRecord,
    TopicInfo,
)
from ddmq.server.admin import dlq, dlq_changes
from ddmq.server.admin.contract.bodies import DeadLetterResendBody
from ddmq.server.admin.dlq import OpenDeadLetters
from ddmq.server.http.routing import NoSuchGroupError
from ddmq_common.delivery import encode
from ddmq_common.errors import CallerError, RemoteError
from ddmq_common.names import dead_letter_topic
from proxy_consumer.groups.group import subscription_key
from proxy_consumer.retries.headers import RetryHeaders, dead_letter, retry_record
from tests.support.dead_letters import DeadLettersRig

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)).map(lambda r: (r[0], r[0] + r[1])))


@given(RANGES, RANGES, st.integers(0, 30), st.integers(0, 30), st.integers(0, 70), st.integers(0, 70))
def test_open_letters_as_a_set_has_them(
    finished: list[tuple[int, int]],
    empty: list[tuple[int, int]],
    low: int,
    more: int,
    start: int,
    end: int,
) -> None:
    acks = AckMap()
    acks.finish(finished)
    view = ProgressView(acks.committed, tuple(acks.finished()), {}, 0, 0)
    gaps = AckMap()  # ranges apart from each other, as they are found
    gaps.finish(empty)
    holes = [(0, gaps.committed), *gaps.finished()]
    opened = OpenDeadLetters(view, Bounds(low, low + more), holes)
    stored = set(range(low, low + more)) - {n for first, last in holes for n in range(first, last)}
    model = stored - {n for first, last in finished for n in range(first, last)}
    assert opened.stored == len(stored)
    assert opened.count(start, end) == len([n for n in model if start <= n < end])
    assert opened.first == min(model, default=low + more)
    assert all((n in opened) == (n in model) for n in range(low, low + more))


@pytest.fixture
def house() -> Iterator[DeadLettersRig]:
    rig = DeadLettersRig()
    yield rig
    rig.backend.close()


def test_many_who_resend_at_once_send_each_once(house: DeadLettersRig) -> None:
    house.die(350)
    answers = [gevent.spawn(house.resend, all=True) for _ in range(5)]
    gevent.joinall(answers, timeout=30, raise_error=True)
    assert sum(answer.value["resent"].get("T", 0) for answer in answers) == 350
    ids = [record.message_id for record in house.stored("T")]
    assert ids == [number.to_bytes(16, "big") for number in range(350)]
    assert house.letters() == 0


def test_purging_while_resending_does_one_or_the_other(house: DeadLettersRig) -> None:
    house.die(350)
    sending, purging = gevent.spawn(house.resend, all=True), gevent.spawn(house.purge, all=True)
    gevent.joinall([sending, purging], timeout=30, raise_error=True)
    assert sending.value["resent"].get("T", 0) + purging.value == 350
    assert len(house.stored("T")) == sending.value["resent"].get("T", 0)


def test_a_long_run_goes_on_at_its_cursor_and_ends_where_it_began(
    house: DeadLettersRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlq_changes, "WORK_S", 0.0)
    house.die(250)
    answer = house.resend(all=True)
    assert (answer["resent"], answer["cursor"]) == ({"T": 100}, [[0, 100, 250]])
    house.die(10)
    sent = 100
    while answer["cursor"] is not None:
        answer = house.resend(all=True, cursor=answer["cursor"])
        sent += answer["resent"].get("T", 0)
    assert (sent, house.letters()) == (250, 10)


def test_choices_go_together(house: DeadLettersRig) -> None:
    house.die(3, "T")
    house.die(3, "U", "timed-out")
    house.die(2, "U")
    assert house.resend(reason="failed", topic="U")["resent"] == {"U": 2}
    assert house.resend(offsets=[0, 4, 99])["resent"] == {"T": 1, "U": 1}
    assert house.resend(since_ms=house.clock.wall_ms() + 1)["resent"] == {}
    assert house.resend(since_ms=house.clock.wall_ms(), dry_run=True)["resent"] == {"T": 2, "U": 2}
    assert house.letters() == 4


def test_an_unknown_outcome_is_an_error_and_the_next_try_finds_out(house: DeadLettersRig) -> None:
    for stored in (True, False):
        house.die(5)
        before = len(house.stored("T"))
        house.backend.fail_next(RemoteError("gone"), times=1, stored=stored)
        with pytest.raises(RemoteError):
            house.resend(all=True)
        house.resend(all=True)
        assert len(house.stored("T")) == before + 5


def groups_named(records: list[StoredRecord]) -> list[str]:
    """The one group that each record is for; "": all."""
    assert all(bool(one.flags & FLAG_ONE_GROUP) == (ONE_GROUP in one.system) for one in records)
    return [one.system.get(ONE_GROUP, "") for one in records]


def test_letters_go_to_their_own_group_and_to_the_topic_on_request(house: DeadLettersRig) -> None:
    house.subscribe("H", "T")
    house.die(3)
    dry = house.resend(offsets=[0], dry_run=True)
    assert dry["reached"] == {"T": {"count": 1, "groups": ["G"]}}
    own = house.resend(offsets=[0])
    assert (own["resent"], own["to_topic"], own["reached"]) == ({"T": 1}, False, dry["reached"])
    dry = house.resend(offsets=[1], to_topic=True, dry_run=True)
    assert dry["reached"] == {"T": {"count": 2, "groups": ["G", "H"]}}
    every = house.resend(offsets=[1], to_topic=True)
    assert (every["resent"], every["to_topic"], every["reached"]) == ({"T": 1}, True, dry["reached"])
    assert groups_named(house.stored("T")) == ["G", ""]


def test_the_groups_that_are_named_are_bounded_and_all_counted(house: DeadLettersRig) -> None:
    for number in range(dlq_changes.GROUPS_SHOWN + 5):
        house.subscribe(f"H{number:03}", "T")
    house.die(1)
    (reached,) = house.resend(all=True, to_topic=True, dry_run=True)["reached"].values()
    assert (reached["count"], len(reached["groups"])) == (dlq_changes.GROUPS_SHOWN + 6, 100)


def test_a_letter_of_a_deleted_subscription_stays_until_it_is_sent_to_the_topic(
    house: DeadLettersRig,
) -> None:
    house.die(2)
    settings = {subscription_key("G", "T"): None}
    house.backend.commit(CommitBatch(settings=settings), house.deadline()).wait(20)
    answer = house.resend(all=True)
    ((why, count),) = answer["kept"].items()
    assert (answer["resent"], count, house.letters()) == ({}, 2, 2)
    assert why.startswith("group G does not consume topic T any more; subscribe it again, or resend to")
    assert "--to-topic" in why
    house.subscribe("G", "T")
    assert house.resend(offsets=[0])["resent"] == {"T": 1}
    assert house.resend(all=True, to_topic=True)["resent"] == {"T": 1}
    assert groups_named(house.stored("T")) == ["G", ""]


@pytest.mark.parametrize("group", ["TRANS_CHECK_MAX_TIME_TOPIC", "%DELAY", "SCHEDULE_TOPIC_XXXX"])
def test_a_letter_that_no_group_had_goes_to_every_group(house: DeadLettersRig, group: str) -> None:
    topic = dead_letter_topic(group)
    house.make(topic)
    house.die(1)
    record = house.stored("%DLQ%G")[0]
    facts = {"dead-letter-reason": "given-up", "dead-letter-topic": "T"}
    house.backend.append([dead_record(topic, record, facts, {})], house.deadline()).wait(20)
    for to_topic in ({}, {"to_topic": True}, {"to_topic": False}):
        body = DeadLetterResendBody(all=True, dry_run=True, **to_topic)
        dry = dlq_changes.resend(house.backend, house.clock, group, body)
        assert (dry["resent"], dry["to_topic"], dry["reached"]["T"]["groups"]) == ({"T": 1}, True, ["G"])
    dlq_changes.resend(house.backend, house.clock, group, DeadLetterResendBody(all=True))
    assert groups_named(house.stored("T")) == [""]


def test_what_dies_again_keeps_nothing_of_where_it_was_resent_to(house: DeadLettersRig) -> None:
    """Who consumes the dead-letter topic gets every letter, and the whole topic may be the next aim."""
    house.die(1)
    house.resend(all=True)
    (resent,) = house.stored("T")
    headers = RetryHeaders(0, "T", 0, resent.offset, 4, 0, "")
    retried = retry_record(QueueRef("%RETRY%G", 1, 0), resent, headers)
    letter = dead_letter("G", resent, headers, "failed", 1)
    for copy in (retried, letter):
        assert not copy.flags & FLAG_ONE_GROUP
        assert ONE_GROUP not in (copy.system or {})
    house.backend.append([letter], house.deadline()).wait(20)
    assert house.resend(all=True, to_topic=True)["resent"] == {"T": 1}
    assert groups_named(house.stored("T")) == ["G", ""]
    assert [one.message_id for one in house.stored("T")] == [resent.message_id] * 2


def test_letters_whose_topic_is_closed_or_gone_are_kept(house: DeadLettersRig) -> None:
    house.die(2, "T")
    house.die(1, "gone")
    info = house.backend.topic("T")
    assert info is not None
    house.backend.put_topic(TopicInfo("T", info.incarnation, 1, writable=False), house.deadline()).wait(20)
    assert house.resend(all=True)["kept"] == {
        "topic T takes no messages": 2,
        "topic gone does not exist any more": 1,
    }
    assert house.letters() == 3


def test_a_letter_that_is_too_large_by_now_is_kept_and_holds_up_no_other(house: DeadLettersRig) -> None:
    house.die(3)
    house.die(2, "U")
    first = house.stored("%DLQ%G")[0]
    body = encode(b"large", bytes(3_000), b"", None)
    headers = RetryHeaders(0, "T", 0, 9, 4, 0, "")
    large = dead_letter("G", first._replace(topic="T", delivery=body), headers, "failed", 1)
    house.backend.append([large], house.deadline()).wait(20)
    can = replace(house.backend.capabilities, body_bytes_max=1_000, properties_bytes_max=100)
    house.backend.capabilities = can  # the limit was lowered since
    answer = house.resend(all=True)
    assert sum(answer["resent"].values()) == 5
    assert answer["kept"] == {"larger than topic T takes (body_bytes_max of the log)": 1}
    assert house.letters() == 1


def test_purge_before_a_moment(house: DeadLettersRig) -> None:
    house.die(3)
    house.clock.advance(10)
    house.die(2)
    assert house.purge(before_ms=house.clock.wall_ms()) == 3
    assert house.letters() == 2
    assert [row["offset"] for row in house.show()["shown"]] == [3, 4]
    assert house.purge(all=True) == 2
    assert house.purge(all=True) == 0


def test_bodies_are_begun_only() -> None:
    assert dlq.preview_body(b"x" * 1_000) == "x" * 200
    assert dlq.preview_body("ж".encode() * 1_000) == "ж" * 200
    assert dlq.preview_body(b"\xff\x00" * 40).startswith("binary: ff 00 ff")
    assert dlq.preview_body(b"") == ""


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"offsets": "1"}, "offsets is '1'"),
        ({"offsets": [-1]}, "whole numbers of 0 or more"),
        ({"reason": 5}, "reason is 5"),
        ({"since_ms": "soon"}, "allowed: a time in epoch milliseconds"),
        ({"since_ms": "9" * 5000}, "allowed: a time in epoch milliseconds"),
        ({}, "nothing is chosen"),
        ({"all": True, "to_topic": "yes"}, "to_topic is 'yes'; allowed: true, false"),
        ({"all": True, "cursor": [[0, 1]]}, "cursor is"),
        ({"all": True, "cursor": [[7, 0, 1]]}, "cursor is"),
    ],
)
def test_requests_that_are_wrong(house: DeadLettersRig, body: dict[str, Any], text: str) -> None:
    with pytest.raises(CallerError, match=text):
        house.resend(**body)


def test_purge_wants_one_of_both(house: DeadLettersRig) -> None:
    for body in ({}, {"all": True, "before_ms": 1}, {"before_ms": "1"}):
        with pytest.raises(CallerError, match="before_ms"):
            house.purge(**body)
    with pytest.raises(NoSuchGroupError, match="has no dead letters"):
        dlq.list_dead_letter_queues(house.backend, "nobody")
