"""The whole way of a failing message: quick retries, sixteen steps over the delay levels, dead letter."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from backend.internal_topics import read_dead_letter
from backend.port import Join, Membership, MembershipListener
from backend.records import StoredRecord
from ddmq_common.errors import BoundReachedError
from ddmq_common.metrics.registry import Registry
from ddmq_rpc.api import Wire
from delay_service.config import DelayConfig
from delay_service.levels.service import LevelService
from proxy_consumer.config import ConsumerConfig, SubscriptionDefaults
from tests.service.consumer.consumer_rig import IDL, ConsumerRig
from tests.service.delay.hand_alarm import HandAlarms
from tests.support.waits import until

STEPS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
FIRST = SubscriptionDefaults(start="first", retry_intervals_ms=(100,))


class RetryPathRig(ConsumerRig):
    """The consumer's rig with the level scheduler beside it."""

    def __init__(self, config: ConsumerConfig | None = None) -> None:
        super().__init__(config or ConsumerConfig())
        self.alarm = HandAlarms()
        self.levels = LevelService(self.backend, DelayConfig(), Registry(), self.clock, self.alarm)
        self.levels.start()
        self.settle()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.alarm.ring()
        self.settle()
        self.service.tick()
        self.settle()

    def close(self) -> None:
        self.levels.close()
        super().close()

    def fail(self, **extra_fields: Any) -> Any:
        """Take one message and fail it; gives the answer it came in."""
        call = self.pull(clientId=b"c", count=1)
        pulled = call.result
        assert len(pulled.messages) == 1
        failed = IDL.ConsumeResult(
            context=pulled.context, successOffsets=[], failOffsets=[pulled.messages[0].offset], **extra_fields
        )
        self.submit(failed)
        self.settle()
        return pulled

    def takes_a_step(self) -> None:
        """A message has failed, again after its quick retry, and waits in the first delay level."""
        self.subscribe(config=FIRST)
        self.send(1)
        self.fail()
        self.advance(0.1)
        self.fail()

    def letter(self, group: str = "G") -> StoredRecord:
        batch = self.wait(self.backend.read(self.ref(0, f"%DLQ%{group}"), 0, 10, 1 << 20))
        assert len(batch.offsets) == 1
        record: StoredRecord = batch.record(0)
        return record

    def retry_progress(self) -> int | None:
        committed: int | None = self.progress(topic="%RETRY%G").committed
        return committed


@pytest.fixture
def house() -> RetryPathRig:
    rig = RetryPathRig()
    rig.topic()
    return rig


def test_the_gauge_of_waiting_retries_survives_a_restart(house: RetryPathRig) -> None:
    house.subscribe(config=FIRST)
    house.send(3)
    for _ in range(3):
        house.fail()
        house.advance(0.2)
        house.fail()
    begun_ms = house.clock.wall_ms()
    house.service._gauges.stop()
    house.restart()
    paths = house.wait(house.service.retry_paths())
    waiting = paths.waiting["G", "T"]
    assert (paths.complete, waiting.messages) == (True, 3)
    assert 0 <= begun_ms - waiting.since_ms < 2_000
    assert 9_000 < waiting.due_ms - begun_ms <= 10_000
    until(lambda: read_gauge(house, "ddmq_retry_waiting") == 3)
    assert read_gauge(house, "ddmq_retry_waiting_age_ms") >= 200
    house.advance(11)
    until(lambda: read_gauge(house, "ddmq_retry_waiting") == 3)  # due, and nobody has taken them
    due = house.wait(house.service.retry_paths()).waiting["G", "T"]
    assert (due.messages, due.since_ms) == (3, waiting.since_ms)
    assert due.due_ms <= house.clock.wall_ms()
    answer = house.pull(clientId=b"c", count=10).result
    assert read_gauge(house, "ddmq_retry_waiting") == 3
    house.submit(IDL.ConsumeResult(context=answer.context, successOffsets=[0, 2], failOffsets=[]))
    until(lambda: read_gauge(house, "ddmq_retry_waiting") == 1)
    house.submit(IDL.ConsumeResult(context=answer.context, successOffsets=[1], failOffsets=[]))
    until(lambda: read_gauge(house, "ddmq_retry_waiting") == 0)
    assert house.wait(house.service.retry_paths()).waiting == {}


@pytest.mark.parametrize("topic", [None, "T"])
@pytest.mark.parametrize("restarted", [False, True])
def test_old_failures_are_not_delivered_to_a_recreated_subscription(
    house: RetryPathRig, topic: str | None, restarted: bool
) -> None:
    house.subscribe(config=FIRST)
    house.send(2)
    for _ in range(2):
        house.fail()
        house.advance(0.2)
        house.fail()  # both are on the retry path, the second one's step comes due later
    house.wait(house.service.delete_group("G", topic))
    house.settle()
    house.advance(1)
    house.subscribe(config=SubscriptionDefaults(start="last", retry_intervals_ms=(100,)))
    if restarted:
        house.restart()
    house.send(1)
    new = house.fail()
    house.advance(0.2)
    assert house.fail().messages[0].value == new.messages[0].value
    attempts = []
    for _ in range(40):
        house.advance(0.5)
        call = house.start_pull(clientId=b"c", linger=20)
        house.advance(0.1)
        attempts += [message.attempt for message in call.result.messages]
    assert attempts == [3], "its own message comes again, the two of before do not"
    assert house.counted("ddmq_skipped_total", reason="subscription deleted") == 2
    until(lambda: house.advance(0.6) or house.retry_progress() == 2)


def read_gauge(house: RetryPathRig, metric: str) -> float:
    """What a gauge of G on T says a little later."""
    house.advance(1.1)
    house.metrics.run_collectors()
    house.settle()
    return house.counted(metric, group="G", topic="T")


def test_sixteen_steps_and_then_the_dead_letter(house: RetryPathRig) -> None:
    house.subscribe(config=FIRST)
    house.send(1)
    begun = house.clock.monotonic()
    first = house.fail()
    house.advance(0.1)
    house.fail()
    qids = {first.context.qid}
    for step, wait_s in enumerate(STEPS_S, 1):
        house.advance(wait_s - 0.5)
        early = house.start_pull(linger=20)
        house.settle()
        house.advance(0.1)
        assert early.result.messages == [], f"step {step} came early"
        house.advance(0.4)
        answer = house.fail()
        (message,) = answer.messages
        assert answer.context.topic == b"T"
        assert (message.key, message.value, message.properties) == (b"k0", b"m0", {b"p": b"v"})
        assert (message.attempt, message.messageId) == (2 + step, first.messages[0].messageId)
        qids.add(answer.context.qid)
    assert house.clock.monotonic() - begun == pytest.approx(sum(STEPS_S), abs=10)
    assert qids == {b"R_default_a_0", b"R_default_%RETRY%_0"}
    letter = read_dead_letter(house.letter())
    assert (letter.topic, letter.queue_id, letter.offset) == ("T", 0, 0)
    assert (letter.attempts, letter.reason) == (18, "failed")
    assert house.retry_progress() == 16
    assert house.counted("ddmq_retry_steps_total") == 16


def test_a_rejected_join_of_a_retry_queue_is_retried_with_growing_pauses(
    house: RetryPathRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    join_times: list[float] = []
    join, free_at = house.backend.join, house.clock.monotonic() + 12.0

    def bounded(request: Join, listener: MembershipListener) -> Membership:
        if request.topic == "%RETRY%G":
            join_times.append(house.clock.monotonic())
            if house.clock.monotonic() < free_at:
                raise BoundReachedError("the session has 10 memberships; allowed: 10")
        return join(request, listener)

    monkeypatch.setattr(house.backend, "join", bounded)
    house.subscribe(config=FIRST)
    house.send(1)
    house.fail()
    house.advance(0.2)
    house.fail()
    waiting = house.start_pull(clientId=b"c", linger=30_000)
    for _ in range(300):
        if waiting.answered:
            break
        house.advance(0.1)
    assert waiting.offsets == [0]
    assert house.clock.monotonic() < free_at + 8.0
    assert len(join_times) == 6
    pauses = [after - before for before, after in pairwise(join_times)]
    assert pauses == pytest.approx([0.5, 1, 2, 4, 8], abs=0.25)


def test_old_clients_and_the_binary_protocol_see_it_too(house: RetryPathRig) -> None:
    house.takes_a_step()
    house.advance(10)
    message = house.pull(clientId=b"c", wire=Wire.BINARY).result.messages[0]
    assert (message.attempt, message.properties) == (3, {b"p": b"v"})


def test_the_error_that_a_client_tells_is_in_the_letter(house: RetryPathRig) -> None:
    house.subscribe(config=SubscriptionDefaults(start="first", retry_intervals_ms=(), retry_steps=1))
    house.send(1)
    house.fail(failReasons=[b"no such customer\n" + b"x" * 300])
    house.advance(10)
    house.fail()
    letter = read_dead_letter(house.letter())
    assert letter.error.startswith("no such customer xxx")
    assert len(letter.error) == 200


def test_what_was_on_its_way_when_an_order_key_was_set_is_not_stranded(house: RetryPathRig) -> None:
    house.takes_a_step()
    ordered = SubscriptionDefaults(start="first", order_key="KEY")
    house.subscription().apply_config(ordered)
    house.restart()
    house.subscription().apply_config(ordered)
    house.advance(10)
    assert house.fail().messages[0].attempt == 3
    assert read_dead_letter(house.letter()).attempts == 3
