"""Time, bounds, rate limits, drain: every accepted send is answered once, in time."""

import pytest

from backend.records import AppendStatus
from ddmq_common.metrics import catalogue
from proxy_producer.config import RateLimit
from tests.unit.producer.producer_rig import ProducerRig, message


def late(rig, outcome):
    return rig.metrics.cell(catalogue.SEND_LATE, outcome).value


@pytest.fixture
def rig():
    return ProducerRig()


def test_the_backend_gets_the_callers_deadline(rig):
    rig.send(timeout=50)
    rig.send(timeout=0)
    rig.send(timeout=-7)
    rig.send(timeout=1 << 62)
    rig.call("sendAsync", message=message())
    rig.call("sendBatchSync", messages=[message()])
    now = rig.clock.monotonic()
    waits = [round(sent.deadline - now, 6) for sent in rig.backend.sent]
    assert waits == [0.05, 10, 10, 10, 10, 10]


def test_a_silent_backend_is_answered_for_before_the_time_is_up(rig):
    call = rig.send(timeout=50)
    rig.advance(0.044)
    assert call.open
    rig.advance(0.002)
    assert call.answer.code == 12
    assert "50 ms" in call.answer.msg
    assert "may or may not be stored" in call.answer.msg


def test_what_the_backend_says_after_that_changes_nothing_but_is_counted(rig):
    stored, lost = rig.send(timeout=50), rig.send(timeout=50)
    rig.advance(0.05)
    assert rig.proxy.flow.inflight == 2, "the backend still holds them"
    rig.backend.sent[0].answer()
    rig.backend.sent[1].answer(AppendStatus.UNKNOWN)
    assert (stored.answer.code, lost.answer.code) == (12, 12)
    assert (late(rig, "stored"), late(rig, "not stored")) == (1, 1)
    assert rig.counted("orders", 0) == 0
    assert (rig.proxy.flow.inflight, rig.proxy.flow.inflight_bytes) == (0, 0)


def test_each_is_swept_at_its_own_time(rig):
    calls = {timeout: rig.send(timeout=timeout) for timeout in (300, 50, 100)}
    for now in (50, 100, 300):
        rig.advance(now / 1000 - (rig.clock.monotonic() - 1_000))
        assert {timeout for timeout, call in calls.items() if not call.open} == {
            timeout for timeout in calls if timeout <= now
        }


def test_the_sweep_rests_when_nothing_is_pending(rig):
    assert rig.timer.sweep is None
    rig.send()
    assert rig.timer.sweep is not None
    rig.backend.sent[0].answer()
    rig.advance(0.005)
    assert rig.timer.sweep is None
    call = rig.send(timeout=20)
    rig.advance(0.02)
    assert call.answer.code == 12


def test_too_many_requests_are_answered_15_at_once():
    rig = ProducerRig(inflight_requests_max=2)
    rig.send()
    rig.call("sendBatchSync", messages=[message()])
    assert rig.code() == 15
    batch = rig.call("sendBatchSync", messages=[message()])
    assert batch.answer.code == 15
    assert "2 requests are in flight" in batch.answer.msg
    rig.backend.sent[0].answer()
    assert rig.send().open
    assert rig.rejected("inflight_requests") == 2


def test_too_many_bytes_are_answered_15_at_once():
    rig = ProducerRig(inflight_bytes_max=1_000)
    rig.call("sendSync", message=message(), frame_bytes=600)
    rejected = rig.call("sendSync", message=message(), frame_bytes=401)
    assert rejected.answer.code == 15
    assert "600 bytes are in flight" in rejected.answer.msg
    assert rig.call("sendSync", message=message(), frame_bytes=400).open
    assert rig.rejected("inflight_bytes") == 1


def test_an_illegal_message_is_11_even_when_full():
    rig = ProducerRig(inflight_requests_max=1)
    rig.send()
    assert rig.code(body=b"") == 11


class TestRates:
    def rig(self, **config):
        return ProducerRig(rate=RateLimit(messages_per_s=10, burst_ms=100), **config)

    def test_over_the_rate_a_send_waits_a_little_and_is_then_stored(self):
        rig = self.rig(defer_ms_max=200)
        rig.send(timeout=1_000)
        waiting = rig.send(timeout=1_000)
        assert len(rig.backend.sent) == 1
        rig.advance(0.05)
        assert len(rig.backend.sent) == 1
        rig.advance(0.06)
        assert len(rig.backend.sent) == 2
        rig.backend.sent[1].answer()
        assert waiting.answer.code == 0
        assert rig.metrics.cell(catalogue.SEND_DEFERRED).value == 1

    def test_those_who_wait_go_in_order(self):
        rig = self.rig(defer_ms_max=1_000)
        for number in range(5):
            rig.send(timeout=5_000, key=b"%d" % number)
        for _ in range(10):
            rig.advance(0.1)
        assert [sent.records[0].key for sent in rig.backend.sent] == [b"0", b"1", b"2", b"3", b"4"]

    def test_a_wait_longer_than_half_the_callers_time_is_15_at_once(self):
        rig = self.rig(defer_ms_max=1_000)
        rig.send()
        answer = rig.send(timeout=150).answer
        assert answer.code == 15
        assert "10 messages/s" in answer.msg
        assert "again in 101 ms" in answer.msg
        assert rig.send(timeout=250).open

    def test_a_wait_longer_than_configured_is_15_at_once(self):
        rig = self.rig(defer_ms_max=50)
        rig.send()
        assert rig.code(timeout=5_000) == 15
        assert rig.rejected("rate") == 1

    def test_the_queue_of_those_who_wait_is_bounded(self):
        rig = self.rig(defer_ms_max=5_000, deferred_max=2)
        for _ in range(3):
            assert rig.send(timeout=10_000).open
        assert rig.code(timeout=10_000) == 15
        assert rig.rejected("deferred_max") == 1

    def test_rejected_ones_take_no_tokens(self):
        rig = self.rig(defer_ms_max=0)
        rig.send()
        for _ in range(50):
            assert rig.code() == 15
        rig.clock.advance(0.1)
        assert rig.send().open

    def test_a_topic_has_its_own_limit_in_messages_and_bytes(self):
        limits = {"orders": RateLimit(bytes_per_s=100, burst_ms=1_000)}
        rig = ProducerRig(topic_rates=limits, defer_ms_max=0)
        assert rig.send(body=b"x" * 90).open
        answer = rig.send(body=b"x" * 20).answer
        assert answer.code == 15
        assert "topic 'orders' is limited to 100 bytes/s" in answer.msg
        assert rig.send(body=b"x" * 10).open
        assert not rig.send(topic=b"other", body=b"x" * 90).answers

    def test_one_that_waits_is_answered_even_if_the_hub_was_away(self):
        rig = self.rig(defer_ms_max=5_000)
        rig.send(timeout=10_000)
        waiting = rig.send(timeout=1_000)
        rig.proxy.flow._deferred.clear()  # as if its turn never came
        rig.advance(1.0)
        assert waiting.answer.code == 12
        assert "is not stored" in waiting.answer.msg
        assert rig.proxy.flow.inflight == 1

    def test_a_batch_pays_for_all_its_messages(self):
        rig = ProducerRig(rate=RateLimit(messages_per_s=10, burst_ms=1_000), defer_ms_max=0)
        call = rig.call("sendBatchSync", messages=[message() for _ in range(10)])
        assert call.open
        assert rig.code() == 15
        assert rig.call("sendBatchSync", messages=[message()] * 2).answer.code == 15

    def test_a_batch_waits_too(self):
        rig = self.rig(defer_ms_max=300)
        rig.send()
        batch = rig.call("sendBatchSync", messages=[message()])
        assert len(rig.backend.sent) == 1
        rig.advance(0.11)
        rig.backend.sent[1].answer()
        assert batch.answer.code == 0


class TestDrain:
    def test_new_sends_are_20_and_pending_ones_are_waited_for(self, rig):
        pending = rig.send()
        drained = rig.proxy.drain(rig.clock.monotonic() + 5)
        assert rig.code() == 20
        assert rig.code(topic=b"carrera_heartbeat") == 20
        assert rig.call("sendBatchSync", messages=[message()]).answer.code == 20
        each = rig.call("sendBatch", messages=[message()] * 2, timeout=0).answer
        assert [result.code for result in each] == [20, 20]
        rig.advance(0.1)
        assert not drained.done
        rig.backend.sent[0].answer()
        rig.advance(0.005)
        assert pending.answer.code == 0
        assert drained.done

    def test_an_idle_proxy_is_drained_at_once(self, rig):
        assert rig.proxy.drain(rig.clock.monotonic()).done
        assert rig.timer.sweep is None

    def test_at_the_deadline_the_rest_is_answered_12(self, rig):
        pending = rig.send(timeout=10_000)
        drained = rig.proxy.drain(rig.clock.monotonic() + 1)
        rig.advance(1.0)
        assert pending.answer.code == 12
        assert drained.done

    def test_draining_twice_is_one_drain(self, rig):
        rig.send()
        first = rig.proxy.drain(rig.clock.monotonic() + 1)
        assert rig.proxy.drain(rig.clock.monotonic() + 1) is first


def test_the_sweep_does_not_look_at_everyone_each_time(rig):
    """Until the earliest deadline comes, a sweep costs the same however many are pending."""
    for _ in range(100):
        rig.send(timeout=10_000)
    touched = []
    flow = rig.proxy.flow
    rig.proxy.flow.unanswered = _Watched(flow.unanswered, touched)
    for _ in range(100):
        rig.advance(0.005)
    assert not touched


class _Watched(set):
    def __init__(self, members, touched):
        super().__init__(members)
        self.touched = touched

    def __iter__(self):
        self.touched.append(1)
        return super().__iter__()


@pytest.mark.parametrize("wire_bytes", [0, 5_000_000])
def test_accounts_are_even_after_every_kind_of_end(wire_bytes):
    rig = ProducerRig(defer_ms_max=0)
    for status in AppendStatus:
        rig.call("sendSync", message=message(), frame_bytes=wire_bytes)
        rig.backend.sent[-1].answer(status)
        rig.call("sendBatch", messages=[message(), message(body=b"")], timeout=0, frame_bytes=wire_bytes)
        rig.backend.sent[-1].answer(status)
    rig.call("sendBatch", messages=[message(body=b"")], timeout=0)
    flow = rig.proxy.flow
    assert (flow.inflight, flow.inflight_bytes, len(flow.unanswered)) == (0, 0, 0)
