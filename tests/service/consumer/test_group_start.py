"""Where a group starts that a client's first pull makes, and the warning that it passes over messages."""

from __future__ import annotations

import logging

import pytest

from ddmq_rpc.api import Wire
from proxy_consumer.config import ConsumerConfig
from tests.service.consumer.consumer_rig import FIRST, ConsumerRig, FakeCall

WIRES = pytest.mark.parametrize("wire", list(Wire))


def with_messages(rig: ConsumerRig, count: int = 5) -> ConsumerRig:
    rig.topic(queues=2)
    rig.send(count)
    return rig


def warnings(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    """(group, messages before its start) of each warning."""
    records = [record for record in caplog.records if "starts after existing" in record.message]
    assert all(record.levelno == logging.WARNING for record in records)
    return [(vars(record)["group"], vars(record)["messages"]) for record in records]


def notice(call: FakeCall) -> str:
    return (call.result.notice or b"").decode()


@WIRES
def test_a_pull_that_says_first_gets_what_was_there(
    rig: ConsumerRig, caplog: pytest.LogCaptureFixture, wire: Wire
) -> None:
    call = with_messages(rig).pull(clientId=b"c", start=b"first", wire=wire)
    assert call.values == [b"m%d" % n for n in range(5)]
    assert notice(call) == ""
    assert warnings(caplog) == []


def test_a_pull_that_says_a_moment_gets_what_was_stored_since(rig: ConsumerRig) -> None:
    with_messages(rig, 3)
    rig.advance(10)
    start = str(rig.clock.wall_ms()).encode()
    rig.send(2)
    assert rig.pull(clientId=b"c", start=start).offsets == [3, 4]


@WIRES
def test_a_pull_without_a_start_begins_at_the_end_and_warns_once(
    rig: ConsumerRig, caplog: pytest.LogCaptureFixture, wire: Wire
) -> None:
    call = with_messages(rig).pull(clientId=b"c", wire=wire)
    assert call.values == []
    assert notice(call).startswith("new group G on topic T starts after 5 existing messages; ")
    assert "start='first'" in notice(call)
    assert "`ddmq offset reset G --topic T --to first`" in notice(call)
    assert warnings(caplog) == [("G", 5)]
    assert [notice(rig.pull(clientId=name)) for name in (b"c", b"d")] == ["", ""]
    assert warnings(caplog) == [("G", 5)]


@WIRES
def test_the_warning_comes_with_messages_too(rig: ConsumerRig, wire: Wire) -> None:
    with_messages(rig)
    call = rig.start_pull(clientId=b"c", linger=10_000, wire=wire)
    rig.settle(lambda: not rig.subscription().creating)
    rig.send(1)
    rig.settle(lambda: call.answered)
    assert call.offsets == [5]
    assert "starts after 5 existing" in notice(call)


def test_a_pull_answered_before_the_group_exists_gets_the_warning_with_the_next(rig: ConsumerRig) -> None:
    with_messages(rig)
    rig.backend.pause_writes()
    first = rig.pull(clientId=b"c")
    rig.backend.resume_writes()
    rig.settle(lambda: not rig.subscription().creating)
    assert notice(first) == ""
    assert "starts after 5 existing" in notice(rig.pull(clientId=b"c"))


def test_a_pull_that_says_last_gets_no_warning(rig: ConsumerRig, caplog: pytest.LogCaptureFixture) -> None:
    call = with_messages(rig).pull(clientId=b"c", start=b"last")
    assert (call.values, notice(call), warnings(caplog)) == ([], "", [])


def test_an_empty_or_missing_topic_gives_no_warning(
    rig: ConsumerRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.topic()
    assert notice(rig.pull(clientId=b"c")) == ""
    assert "does not exist" in notice(rig.pull(topic=b"U", clientId=b"c"))
    assert warnings(caplog) == []


def test_old_clients_are_answered_as_ever_and_the_log_warns(
    rig: ConsumerRig, caplog: pytest.LogCaptureFixture
) -> None:
    assert with_messages(rig).pull().result.notice is None
    assert warnings(caplog) == [("G", 5)]


def test_the_start_of_a_group_that_exists_changes_nothing(
    rig: ConsumerRig, caplog: pytest.LogCaptureFixture
) -> None:
    with_messages(rig).pull(clientId=b"c", start=b"last")
    rig.send(1)
    assert rig.pull(clientId=b"d", start=b"first").offsets == [5]
    assert warnings(caplog) == []


def test_a_start_is_set_for_each_topic_of_a_group(rig: ConsumerRig) -> None:
    with_messages(rig)
    rig.topic("U")
    rig.send(2, topic="U")
    assert rig.pull(clientId=b"c", start=b"last").offsets == []
    assert rig.pull(topic=b"U", clientId=b"c", start=b"first").offsets == [0, 1]


def test_a_recreated_group_starts_as_the_pull_says(rig: ConsumerRig) -> None:
    with_messages(rig).pull(clientId=b"c", start=b"last")
    rig.wait(rig.directory.delete("G"))
    rig.settle(lambda: b"G" not in rig.directory.groups)
    assert len(rig.pull(clientId=b"c", start=b"first").offsets) == 5


def test_a_restart_keeps_where_it_started(rig: ConsumerRig) -> None:
    with_messages(rig)
    assert len(rig.pull(clientId=b"c", start=b"first").offsets) == 5
    rig.restart()
    assert len(rig.pull(clientId=b"c").offsets) == 5


@pytest.mark.parametrize("start", [b"", b"newest", b"-1", b"1e3", b"\xff", b"9" * 16, b"x" * 10_000])
@pytest.mark.parametrize("exists", [True, False])
def test_any_other_start_is_rejected_and_creates_nothing(
    rig: ConsumerRig, start: bytes, exists: bool
) -> None:
    with_messages(rig)
    if exists:
        rig.subscribe(config=FIRST)
    error = rig.start_pull(clientId=b"c", start=start).outcome.error
    assert error.code == 11
    assert b"allowed: first, last, or epoch milliseconds" in error.message
    assert len(error.message) < 200
    assert (b"G" in rig.directory.groups) == exists


def test_a_proxy_whose_groups_start_at_the_first_message_says_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = with_messages(ConsumerRig(ConsumerConfig(defaults=FIRST)))
    call = rig.pull(clientId=b"c")
    assert (len(call.offsets), notice(call), warnings(caplog)) == (5, "", [])
