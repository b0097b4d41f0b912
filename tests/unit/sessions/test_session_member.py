"""A member: batching, deadlines, what becomes of requests when the writer goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.completion import Completion
from backend.file_log.sessions import codec
from backend.file_log.sessions.member import MemberBackend
from backend.file_log.sessions.pipe import FrameKind, encode_frame
from backend.port import Join, Sharing
from backend.records import AppendResult, AppendStatus, CommitBatch, Durability, ProgressDelta, TopicInfo
from ddmq_common.errors import BoundReachedError, DrainingError, RemoteError, TryLaterError
from tests.support.passed_over import PassedOver
from tests.support.recording_listener import RecordingListener
from tests.support.waits import done, soon, until
from tests.unit.sessions.session_kit import CLOCK, Engine, SessionsRig, house, queue, record

FINISH = CommitBatch(progress=[ProgressDelta("g", queue(), 0, 0, [(0, 1)])])


def statuses(completion: Completion[list[AppendResult]]) -> list[AppendStatus]:
    return [result.status for result in done(completion)]


def test_small_appends_of_one_iteration_travel_together(home: SessionsRig) -> None:
    member = home.served_member()
    calls = [member.append([record(body=b"%d" % n)], soon()) for n in range(200)]
    assert [done(call)[0].offset for call in calls] == list(range(200))
    assert home.engine.appends == 1


def test_an_iteration_of_many_bytes_travels_in_several_frames(tmp_path: Path) -> None:
    home = house(tmp_path, batch_bytes=10_000)
    member = home.served_member()
    calls = [member.append([record(body=b"x" * 1000)], soon()) for _ in range(50)]
    assert [done(call)[0].offset for call in calls] == list(range(50))
    assert 5 <= home.engine.appends <= 8


def test_appends_and_commits_keep_their_order(home: SessionsRig) -> None:
    member = home.served_member()
    calls = []
    for _ in range(20):
        calls.append(member.append([record()], soon()))
        calls.append(member.commit(CommitBatch([record()]), soon()))
    assert [done(call)[0].offset for call in calls] == list(range(40))


def test_durable_and_written_appends_do_not_share_a_frame(home: SessionsRig) -> None:
    home.make()
    fast = TopicInfo("fast", 0, 1, durability=Durability.WRITTEN)
    done(home.engine.put_topic(fast, soon()))
    home.serve()
    member = home.member()
    topics = ["orders", "orders", "fast", "fast", "orders"]
    calls = [member.append([record(topic)], soon()) for topic in topics]
    assert [done(call)[0].offset for call in calls] == [0, 1, 0, 1, 2]
    assert home.engine.appends == 3


def test_bad_arguments_of_one_call_do_not_refuse_the_others(home: SessionsRig) -> None:
    member = home.served_member()
    bad = record()
    bad.born_ms = 1 << 70
    calls = [member.append([one], soon()) for one in (record(), bad, record())]
    assert [statuses(call) for call in calls] == [
        [AppendStatus.STORED],
        [AppendStatus.REFUSED],
        [AppendStatus.STORED],
    ]


def test_an_append_larger_than_a_frame_is_rejected_alone(tmp_path: Path) -> None:
    home = house(tmp_path, frame_bytes_max=5000)
    member = home.served_member()
    calls = [member.append([record(body=b"x" * size)], soon()) for size in (10, 9000, 20)]
    assert [done(call)[0].status for call in calls] == [
        AppendStatus.STORED,
        AppendStatus.REFUSED,
        AppendStatus.STORED,
    ]
    assert isinstance(done(calls[1])[0].error, BoundReachedError)


def test_a_member_reads_its_own_changes_once_they_are_answered(home: SessionsRig) -> None:
    home.serve()
    member = home.member()
    changed_keys: list[str] = []
    member.watch_settings(changed_keys.append)
    created = done(member.put_topic(TopicInfo("orders", 0, 2), soon()))
    assert member.topic("orders") == created
    done(member.commit(CommitBatch(settings={"group/g": b"1"}), soon()))
    assert member.setting("group/g") == b"1"
    assert member.settings("group/") == {"group/g": b"1"}
    done(member.commit(CommitBatch(settings={"group/g": None}), soon()))
    assert member.setting("group/g") is None
    done(member.delete_topic("orders", soon()))
    assert member.topics() == {}
    assert changed_keys == ["topic/orders", "group/g", "group/g", "topic/orders"]


def test_members_see_each_other_s_changes(home: SessionsRig) -> None:
    home.serve()
    one, other = home.member(), home.member()
    done(one.put_topic(TopicInfo("orders", 0, 2), soon()))
    done(one.commit(CommitBatch(settings={"k": b"v"}), soon()))
    until(lambda: other.setting("k") == b"v" and other.topic("orders"), "the other sees it")


# --- when the writer goes


def test_what_was_sent_and_not_answered_is_unknown(home: SessionsRig) -> None:
    server, member = home.served_by()
    home.engine.pause_writes()
    sent = member.append([record(), record()], soon())
    mixed = member.commit(CommitBatch([record()], FINISH.progress), soon())
    until(lambda: home.engine.appends and home.engine.commits, "both are at the engine")
    server.close()
    assert statuses(sent) == [AppendStatus.UNKNOWN] * 2
    with pytest.raises(RemoteError, match="the outcome is unknown"):
        done(mixed)
    assert not member.health().ready


def test_progress_reads_and_waits_go_to_the_next_writer(home: SessionsRig) -> None:
    server, member = home.served_by()
    home.engine.pause_writes()
    finished = member.commit(FINISH, soon())
    wait = member.wait(queue(), 0, soon())
    until(lambda: home.engine.commits, "the commit is at the engine")
    server.close()
    until(lambda: not member.link.is_attached, "the session is lost")
    bounds = member.bounds([queue()])
    append = member.append([record()], soon())
    home.engine.resume_writes()
    assert not any(pending.done for pending in (finished, wait, bounds, append))
    home.serve_from_new_writer(member)
    assert done(finished) == []
    assert done(bounds)[0] is not None
    assert statuses(append) == [AppendStatus.STORED]
    assert done(wait) is True
    assert done(home.engine.progress("g", [queue()]))[0].committed == 1


def without_writer(tmp_path: Path) -> tuple[SessionsRig, MemberBackend]:
    """A member whose session is lost: what it is asked for is held."""
    home = house(tmp_path)
    server, member = home.served_by()
    server.close()
    until(lambda: not member.link.is_attached, "the session is lost")
    return home, member


def test_queued_requests_go_to_the_next_writer_in_one_pass(tmp_path: Path) -> None:
    """Tens of thousands may be held; the hub answers nobody meanwhile."""
    home, member = without_writer(tmp_path)
    waits = [member.wait(queue(), 0, soon()) for _ in range(50)]
    outstanding = member.link.outstanding
    queued = outstanding.queued = PassedOver(outstanding.queued)
    home.serve_from_new_writer(member)
    assert statuses(member.append([record()], soon())) == [AppendStatus.STORED]
    assert all(done(wait) for wait in waits)
    assert not queued
    assert queued.passes < 5


def test_what_was_never_sent_is_not_stored(tmp_path: Path) -> None:
    _, member = without_writer(tmp_path)
    deadline = CLOCK.monotonic() + 0.1
    append, commit = member.append([record()], deadline), member.commit(FINISH, deadline)
    wait = member.wait(queue(), 0, deadline)
    assert statuses(append) == [AppendStatus.NOT_STORED]
    assert CLOCK.monotonic() >= deadline
    assert isinstance(append.value[0].error, TryLaterError)
    with pytest.raises(TryLaterError, match="nothing is stored"):
        done(commit)
    assert done(wait) is False
    assert len(member.link.outstanding) == 0


def test_deadlines_pass_while_the_writer_keeps_silent(home: SessionsRig) -> None:
    member = home.served_member()
    home.engine.pause_writes()
    now = CLOCK.monotonic()
    early, late = member.append([record()], now + 0.5), member.append([record()], soon())
    assert statuses(early) == [AppendStatus.UNKNOWN]
    assert CLOCK.monotonic() >= now + 0.5
    assert not late.done
    home.engine.resume_writes()
    assert statuses(late) == [AppendStatus.STORED]
    assert home.engine.appends == 1


def test_memberships_are_lost_and_reassigned_under_a_higher_epoch(home: SessionsRig) -> None:
    (server, member), listener = home.served_by(), RecordingListener()
    membership = member.join(Join("g", "orders"), listener)
    until(lambda: listener.epochs, "the first assignment")
    server.close()
    until(lambda: listener.names == ["assigned", "lost"], "it is lost")
    home.serve_from_new_writer(member)
    until(lambda: len(listener.epochs) == 2, "the second assignment")
    assert listener.epochs[1] > listener.epochs[0]
    membership.leave()
    other = RecordingListener()
    home.member().join(Join("g", "orders"), other)
    until(lambda: other.epochs, "it moves on")
    assert listener.names == ["assigned", "lost", "assigned"]


def test_unanswered_progress_comes_before_the_new_epoch(home: SessionsRig) -> None:
    (server, member), listener = home.served_by(), RecordingListener()
    member.join(Join("g", "orders"), listener)
    until(lambda: listener.epochs, "the assignment")
    server.close()
    until(lambda: not member.link.is_attached, "the session is lost")
    delta = ProgressDelta("g", queue(), listener.epochs[0], 0, [(0, 1)])
    finished = member.commit(CommitBatch(progress=[delta]), soon())
    for request in list(member.link.outstanding.queued):
        request.is_sent = True  # as if it had been sent to the writer that went
    home.serve_from_new_writer(member)
    assert done(finished) == []
    until(lambda: len(listener.epochs) == 2, "the second assignment")


def test_releases_reach_the_writer(home: SessionsRig) -> None:
    home.make()
    home.serve()
    first, second = RecordingListener(), RecordingListener()
    membership = home.member().join(Join("g", "orders", Sharing.WHOLE_TOPIC), first)
    until(lambda: first.epochs, "the first holds")
    other = home.member()
    other.join(Join("g", "orders", Sharing.WHOLE_TOPIC), second)
    assert list(done(other.holders("g", "orders", soon()))) == [queue()], "the second is in line"
    home.engine.revoke("g", "orders", soon())
    until(lambda: "revoked" in first.names, "the first is asked")
    membership.release([queue()])
    until(lambda: second.epochs, "the second holds")


def test_a_silent_writer_is_abandoned(home: SessionsRig) -> None:
    lost: list[int] = []
    member, _ = home.stuck_member(lambda: lost.append(1), silence_s=0.2)
    until(lambda: lost, "the member gives up")
    assert not member.link.is_attached


def test_nonsense_from_the_writer_ends_the_session(home: SessionsRig) -> None:
    member, server = home.stuck_member()
    peer = server.accept()
    peer.send(b"\xff" * 100)
    until(lambda: not member.link.is_attached, "the member gives up")


def test_a_writer_that_is_going_gets_nothing_new(home: SessionsRig) -> None:
    server, member = home.served_by()
    server.announce_stop()
    until(lambda: member.link.is_writer_leaving, "the member has heard it")
    pending_append = member.append([record()], soon())
    server.close()
    assert home.engine.appends == 0
    until(lambda: not member.link.is_attached, "the session is over")
    home.serve_from_new_writer(member)
    assert statuses(pending_append) == [AppendStatus.STORED]


def test_requests_rejected_by_a_draining_writer_go_to_the_next_in_order(home: SessionsRig) -> None:
    server, member = home.served_by()
    first = member.append([record()], soon())
    done(home.engine.drain(soon()))  # unlike an election, it has told nobody
    commit = member.commit(CommitBatch([record()]), soon())
    wait = member.wait(queue(), 5, soon())
    second = member.append([record()], soon())
    until(lambda: len(member.link.outstanding.queued) == 4, "everything is held again")
    server.close()
    until(lambda: not member.link.is_attached, "the session is over")
    pending_append = member.append([record()], soon())
    home.engine.end()
    home.engine = Engine()
    home.make()
    home.serve_from_new_writer(member)
    assert [done(call)[0].offset for call in (first, commit, second, pending_append)] == [0, 1, 2, 3]
    assert not wait.done


def test_a_malformed_answer_ends_the_session_and_leaves_nothing_open(home: SessionsRig) -> None:
    member, server = home.stuck_member()
    peer = server.accept()
    pong = codec.encode((0, True, ""))
    peer.send(encode_frame(FrameKind.READY, 0, pong))
    until(lambda: member.link.is_ready, "the session stands")
    append = member.append([record()], soon())
    until(lambda: member.link.outstanding.sent, "it is sent")
    peer.send(encode_frame(FrameKind.ANSWER, next(iter(member.link.outstanding.sent)), b"\x93\x01"))
    assert statuses(append) == [AppendStatus.UNKNOWN]
    assert not member.link.is_attached


def test_a_callback_that_raises_does_not_keep_the_others_waiting(home: SessionsRig) -> None:
    member = home.served_member()

    def fail(_: object) -> None:
        raise RuntimeError("a bug of the caller")

    calls = [member.append([record()], soon()) for _ in range(3)]
    calls[0].then(fail)
    assert [done(call)[0].offset for call in calls[1:]] == [1, 2]
    assert calls[0].done
    assert len(member.link.outstanding) == 0
    assert member.link.outstanding.bytes == 0


# --- bounds and the end


def test_bytes_outstanding_are_bounded(home: SessionsRig) -> None:
    member, _ = home.stuck_member(in_flight_bytes_max=10_000)
    pending_append, over = (member.append([record(body=b"x" * 6000)], soon()) for _ in range(2))
    assert statuses(over) == [AppendStatus.REFUSED]
    assert isinstance(over.value[0].error, BoundReachedError)
    assert not pending_append.done


def test_requests_outstanding_are_bounded(home: SessionsRig) -> None:
    member, _ = home.stuck_member(requests_max=5)
    waits = [member.wait(queue(), 0, soon()) for _ in range(6)]
    with pytest.raises(BoundReachedError, match="5 requests"):
        done(waits[5])
    assert not any(wait.done for wait in waits[:5])


def test_abandoned_waits_free_capacity(tmp_path: Path) -> None:
    home = house(tmp_path, silence_s=0.4)
    member = home.served_member()
    wait = member.wait(queue(), 0, soon())
    wait.cancel()
    until(lambda: len(member.link.outstanding) == 0, "the wait is taken back")
    assert not wait.done


def test_draining_answers_pending_calls(home: SessionsRig) -> None:
    member = home.served_member()
    home.engine.pause_writes()
    pending, wait = member.append([record()], soon()), member.wait(queue(), 0, soon())
    drained = member.drain(soon())
    late = member.append([record()], soon())
    assert isinstance(done(late)[0].error, DrainingError)
    with pytest.raises(DrainingError):
        done(wait)
    assert not drained.done
    home.engine.resume_writes()
    done(drained)
    assert statuses(pending) == [AppendStatus.STORED]


def test_closing_fails_pending_calls(home: SessionsRig) -> None:
    server, member = home.served_by()
    home.engine.pause_writes()
    append, wait, topic_change = member.append([record()], soon()), member.wait(queue(), 0, soon()), None
    until(lambda: home.engine.appends, "it is at the engine")
    topic_change = member.put_topic(TopicInfo("bills", 0, 1), soon())
    member.close()
    member.close()
    for pending in (append, wait, topic_change):
        with pytest.raises(DrainingError):
            done(pending)
    with pytest.raises(DrainingError):
        done(member.bounds([queue()]))
    until(lambda: server.session_count == 0, "the writer sees it")
