"""Resending: the decision table, SendJob against a model, node health, the pipeline."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddmq_client import (
    InvalidMessageError,
    NoSuchTopicError,
    NotStoredError,
    OutgoingMessage,
    SendResult,
    ThrottledError,
    UnknownOutcomeError,
)
from ddmq_client.core import verdicts
from ddmq_client.core.nodes import Node, ProxyAddress, Rotation
from ddmq_client.core.pipeline import Pipeline, QueuedSend, needs_own_request
from ddmq_client.core.sending import ResendPolicy, SendJob
from ddmq_client.core.settings import ProducerSettings
from ddmq_client.core.verdicts import CallVerdict
from ddmq_client.delays import When
from ddmq_client.idl.codes import Code
from ddmq_client.outbox import Outbox
from ddmq_client.wire import producing
from ddmq_client.wire.codec import StructArgs, encode

FIXED = settings(deadline=None, derandomize=True)

NODES = [Node(ProxyAddress("a", 1)), Node(ProxyAddress("b", 1))]
ERRORS = {
    10: UnknownOutcomeError,
    11: InvalidMessageError,
    12: UnknownOutcomeError,
    13: NoSuchTopicError,
    14: NoSuchTopicError,
    15: ThrottledError,
    18: InvalidMessageError,
    19: InvalidMessageError,
    20: NotStoredError,
    21: NotStoredError,
    **dict.fromkeys(range(30, 39), InvalidMessageError),
    99: UnknownOutcomeError,
}
CERTAIN = {11, 13, 14, 15, 18, 19, 20, 21, *range(30, 39)}


def result(code: int) -> SendResult:
    answer = SendResult()
    answer.code, answer.text = code, f"FAILED: {code}"
    return answer


def run(job: SendJob, *codes: int, elsewhere: bool = False) -> float | None:
    """One attempt answered with these codes; the wait that follows."""
    job.begin(NODES[0])
    job.take_results(NODES[0], [result(code) for code in codes], elsewhere)
    return job.next_wait(0.0, elsewhere)


def job_of(count: int, **policy: object) -> SendJob:
    return SendJob([b"m%d" % at for at in range(count)], count > 1, 10.0, ResendPolicy(**policy))  # type: ignore[arg-type]


def test_every_code_of_the_wire_is_in_the_table() -> None:
    assert {code for code in Code if code} <= set(ERRORS)


@pytest.mark.parametrize(("code", "error"), ERRORS.items())
def test_the_error_of_each_code(code: int, error: type[Exception]) -> None:
    job = job_of(1, attempts_max=1)
    assert run(job, code) is None
    (outcome,) = job.results
    assert type(outcome.error) is error
    assert not outcome.stored
    assert outcome.error.code == outcome.code == code
    assert outcome.error.proxy == "a:1"
    with pytest.raises(error, match=f"^{code} .code {code}"):
        outcome.raise_for_error()


@pytest.mark.parametrize("code", [0, 1])
def test_stored(code: int) -> None:
    job = job_of(1)
    assert run(job, code) is None
    assert job.results[0].stored
    assert job.results[0].raise_for_error() is job.results[0]


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_where_each_code_is_resent(code: int) -> None:
    waits = {
        (alone, allowed): run(job_of(1, retry_unknown=allowed), code, elsewhere=not alone)
        for alone in (True, False)
        for allowed in (True, False)
    }
    resends = {key for key, wait in waits.items() if wait is not None}
    everywhere = {(True, True), (True, False), (False, True), (False, False)}
    if code in (15, 20):
        assert resends == everywhere
    elif code == 21:
        assert resends == {(False, True), (False, False)}
    elif code in CERTAIN:
        assert resends == set()
    else:
        assert resends == {(True, True), (False, True)}
    assert all(wait == 0.0 for (alone, _), wait in waits.items() if wait is not None and not alone)
    assert all(wait > 0.0 for (alone, _), wait in waits.items() if wait is not None and alone)


FAILED_CALLS = (CallVerdict.NOT_SENT, CallVerdict.WRONG_SERVER, CallVerdict.LOST, CallVerdict.TIMED_OUT)
STEPS = st.sampled_from([0, 10, 11, 12, 13, 15, 20, 21, *FAILED_CALLS])


@FIXED
@given(st.lists(STEPS, min_size=1, max_size=12), st.booleans(), st.booleans(), st.integers(1, 6))
def test_a_job_against_a_model(
    steps: list[int | CallVerdict], allowed: bool, elsewhere: bool, most: int
) -> None:
    job = job_of(1, retry_unknown=allowed, attempts_max=most)
    sent, unknown, over = 0, False, False
    for step in steps:
        sent += 1
        job.begin(NODES[0])
        if isinstance(step, CallVerdict):
            job.take_failure(NODES[0], step, "no answer", elsewhere)
        else:
            job.take_results(NODES[0], [result(step)], elsewhere)
        uncertain = step in (10, 12, CallVerdict.LOST, CallVerdict.TIMED_OUT)
        unknown |= uncertain
        over = job.next_wait(0.0, elsewhere) is None
        if uncertain and not allowed:
            assert over, "what may be stored is never sent again unless allowed"
        if over:
            break
    assert sent <= most
    (outcome,) = job.results
    if outcome.stored:
        assert step == 0
    else:
        assert isinstance(outcome.error, UnknownOutcomeError) == unknown, "unknown once is unknown for good"


def test_a_server_that_is_no_proxy_is_tried_once() -> None:
    job = job_of(1)
    job.begin(NODES[0])
    job.take_failure(NODES[0], CallVerdict.WRONG_SERVER, "an HTTP server answers", True)
    assert job.next_wait(0.0, True) == 0.0, "another proxy at once"
    job.begin(NODES[1])
    job.take_failure(NODES[1], CallVerdict.WRONG_SERVER, "an HTTP server answers", False)
    assert job.next_wait(0.0, False) is None
    assert type(job.results[0].error) is NotStoredError


def test_only_the_certainly_unstored_messages_of_a_batch_are_resent() -> None:
    job = job_of(5)
    assert run(job, 0, 15, 12, 11, 20) is not None
    first = [outcome.error and type(outcome.error) for outcome in job.results]
    assert first == [None, ThrottledError, UnknownOutcomeError, InvalidMessageError, NotStoredError]
    frame = job.encode_request(0.0, 1)
    assert b"m1" in frame
    assert b"m4" in frame
    assert not any(member in frame for member in (b"m0", b"m2", b"m3"))
    assert run(job, 0, 0) is None
    assert [outcome.stored for outcome in job.results] == [True, True, False, False, True]


def test_a_batch_answer_of_the_wrong_length_is_an_unknown_outcome() -> None:
    job = job_of(2)
    job.begin(NODES[0])
    assert job.take_results(NODES[0], [result(0)], False) is CallVerdict.LOST
    assert job.next_wait(0.0, False) is None
    assert all("1 results for 2" in str(outcome.error) for outcome in job.results)
    assert all(isinstance(outcome.error, UnknownOutcomeError) for outcome in job.results)


def test_time_runs_out_between_attempts() -> None:
    job = job_of(1)
    job.begin(NODES[0])
    job.take_failure(NODES[0], CallVerdict.NOT_SENT, "cannot connect to a:1", False)
    assert job.next_wait(9.999, False) is None
    assert isinstance(job.results[0].error, NotStoredError)


def test_nothing_tried_gets_the_reason() -> None:
    job = job_of(2)
    job.give_up(NotStoredError("no name resolves"))
    assert {str(outcome.error) for outcome in job.results} == {"no name resolves"}


def test_the_proxy_gets_less_time_than_the_caller_has() -> None:
    from ddmq_client.wire.codec import decode
    from ddmq_client.wire.producing import _specs, idl

    args = _specs.register_struct(idl.ProducerService.sendSync_args)
    job = SendJob([b"\x00"], False, 1.0, ResendPolicy())
    frame = job.encode_request(0.0, 1)
    assert decode(frame, 4 + 12, args).timeout == 950
    assert decode(job.encode_request(0.999, 1), 4 + 12, args).timeout == 1
    assert decode(job.encode_request(2.0, 1), 4 + 12, args).timeout == 1


def test_retrying_what_is_unknown_leaves_time_for_it() -> None:
    job = SendJob([b"m"], False, 1.0, ResendPolicy(retry_unknown=True, attempts_max=2))
    job.begin(NODES[0])
    assert job.attempt_deadline(0.0) == 0.5
    job.begin(NODES[0])
    assert job.attempt_deadline(0.5) == 1.0


@pytest.mark.parametrize("timeout_s", [3.0, 30.0, 120.0])
def test_an_unstored_message_is_resent_until_the_timeout(timeout_s: float) -> None:
    """A proxy that is down for as long refuses every connection at once."""
    job, now = SendJob([b"m"], False, timeout_s, ResendPolicy()), 0.0
    wait: float | None = 0.0
    while wait is not None:
        now += wait
        job.begin(NODES[0])
        job.take_failure(NODES[0], CallVerdict.NOT_SENT, "connection refused", False)
        wait = job.next_wait(now, False)
    assert now > timeout_s - 1.0


def test_verdicts_of_error_kinds() -> None:
    assert verdicts.of_error_kind(1) is verdicts.of_error_kind(7) is CallVerdict.UNAVAILABLE
    assert verdicts.of_error_kind(6) is verdicts.of_error_kind(99) is CallVerdict.UNKNOWN


@pytest.fixture
def rotation() -> Rotation:
    rotation = Rotation(lambda: 0.5)  # jitter: back-offs last exactly their length
    rotation.update([ProxyAddress(host, 1) for host in "abc"])
    return rotation


def picked(rotation: Rotation, times: int, *avoid: Node) -> list[str]:
    return sorted({(rotation.pick_node(avoid) or NODES[0]).address.host for _ in range(times)})


def test_round_robin_and_avoiding(rotation: Rotation) -> None:
    a, b, c = rotation.nodes
    assert picked(rotation, 6) == ["a", "b", "c"]
    assert picked(rotation, 6, a) == ["b", "c"]
    assert picked(rotation, 6, a, b, c) == ["a", "b", "c"]
    assert rotation.has_fresh({a, b})
    assert not rotation.has_fresh({a, b, c})


@pytest.mark.parametrize(
    "verdict", [CallVerdict.NOT_SENT, CallVerdict.WRONG_SERVER, CallVerdict.LOST, CallVerdict.LEAVING]
)
def test_out_after_a_failure_back_after_a_probe(rotation: Rotation, verdict: CallVerdict) -> None:
    a = rotation.nodes[0]
    rotation.record_outcome(a, verdict, now=0.0)
    rotation.record_outcome(a, verdict, now=0.1)  # of a call that was under way: counts once
    assert picked(rotation, 6) == ["b", "c"]
    assert rotation.due_probes(0.9) == []
    assert rotation.due_probes(1.0) == [a]
    assert rotation.due_probes(1.0) == [], "nobody probes twice at a time"
    rotation.record_outcome(a, CallVerdict.LOST, now=1.1)
    assert rotation.due_probes(3.0) == []
    assert rotation.due_probes(3.1) == [a], "the back-off doubles"
    rotation.record_outcome(a, CallVerdict.STORED, now=3.2)
    assert picked(rotation, 6) == ["a", "b", "c"]
    assert a.is_healthy


def test_the_back_off_has_a_ceiling(rotation: Rotation) -> None:
    a, now = rotation.nodes[0], 0.0
    for _ in range(20):
        rotation.record_outcome(a, CallVerdict.LOST, now)
        assert a.retry_at is not None
        assert a.retry_at - now <= 30.0
        now = a.retry_at
        rotation.due_probes(now)


def test_only_time_outs_in_a_row_take_a_node_out(rotation: Rotation) -> None:
    a = rotation.nodes[0]
    for verdict in (
        CallVerdict.TIMED_OUT,
        CallVerdict.TIMED_OUT,
        CallVerdict.THROTTLED,
        CallVerdict.TIMED_OUT,
    ):
        rotation.record_outcome(a, verdict, 0.0)
        assert a.is_up
    rotation.record_outcome(a, CallVerdict.TIMED_OUT, 0.0)
    rotation.record_outcome(a, CallVerdict.TIMED_OUT, 0.0)
    assert not a.is_up


def test_with_every_node_out_the_one_due_first_is_used(rotation: Rotation) -> None:
    for at, node in enumerate(rotation.nodes):
        rotation.record_outcome(node, CallVerdict.LOST, now=3.0 - at)
    assert picked(rotation, 3) == ["c"]
    assert not rotation.has_fresh(())


def test_a_new_resolution_keeps_health_and_returns_removed_nodes(rotation: Rotation) -> None:
    a, b, c = rotation.nodes
    rotation.record_outcome(a, CallVerdict.LOST, 0.0)
    assert rotation.update([ProxyAddress("d", 1), ProxyAddress("a", 1), ProxyAddress("d", 1)]) == [b, c]
    assert b.removed
    assert [node.address.host for node in rotation.nodes] == ["d", "a"]
    assert rotation.nodes[1] is a
    assert not a.is_up
    assert Rotation(lambda: 0.0).pick_node(()) is None


def waiting(size: int, deadline: float = 10.0, alone: bool = False) -> QueuedSend[None]:
    return QueuedSend(b"x" * size, deadline, deadline * 0.75, alone, None, None)


def test_the_pipeline_gathers_what_waits() -> None:
    pipeline: Pipeline[None] = Pipeline(in_flight_max=6, batch_bytes=100, batch_messages=3)
    for size in (10, 10, 10, 10, 90, 200):
        assert not pipeline.is_full
        pipeline.put(waiting(size))
    assert pipeline.is_full
    batches = [[len(w.encoded) for w in pipeline.take_batch(0.0)] for _ in range(4)]
    assert batches == [[10, 10, 10], [10, 90], [200], []]
    assert pipeline.is_full, "in flight until done"
    pipeline.complete_sends(6)
    assert pipeline.in_flight == 0


def test_delays_and_stragglers_go_alone() -> None:
    pipeline: Pipeline[None] = Pipeline(100, 1000, 100)
    late = [waiting(3, deadline=1.0), waiting(4), waiting(5), waiting(6, deadline=1.0)]
    for entry in (waiting(1), waiting(2, alone=True), *late):
        pipeline.put(entry)
    batches = [[len(w.encoded) for w in pipeline.take_batch(0.9)] for _ in range(5)]
    assert batches == [[1], [2], [3], [4, 5], [6]]
    assert needs_own_request(OutgoingMessage("t", b"b", properties={"DELAY": "3"}))
    assert needs_own_request(OutgoingMessage("t", b"b", properties={"a": "b", "x-delay": "5000"}))
    assert not needs_own_request(OutgoingMessage("t", b"b", properties={"a": "DELAY"}))


def test_a_possible_delay_has_its_own_request_at_its_position() -> None:
    """Where the topic does not, it is an ordinary message, and those of one queue keep their order."""
    outbox = Outbox(ProducerSettings(client_id="me"))
    plain, level, rabbit = None, {"DELAY": "3"}, {"x-delay": "5000"}
    properties_of = [plain, plain, level, rabbit, plain, rabbit, rabbit, plain]
    plan = outbox.plan_batch([OutgoingMessage("t", b"b", properties=one) for one in properties_of])
    assert [[at for at, _ in request] for request in plan.requests] == [[0, 1], [3], [4], [5], [6], [7], [2]]


def test_a_selector_that_fails_costs_its_own_message_alone() -> None:
    queues = {b"a": 1, b"c": 2}
    outbox = Outbox(ProducerSettings(client_id="me", selector=lambda message: queues[message.body]))  # type: ignore[index]
    plan = outbox.plan_batch([OutgoingMessage("t", body) for body in (b"a", b"b", b"c")])
    assert [[at for at, _ in request] for request in plan.requests] == [[0, 2]]
    failed = plan.results[1]
    assert isinstance(failed.error, InvalidMessageError)
    assert failed.text.startswith("the selector failed for a message to 't': KeyError(b'b')")


def test_a_resend_is_encoded_as_a_resend() -> None:
    encodings: list[bytes] = []

    def encode_resend() -> bytes:
        encodings.append(b"resent")
        return b"resent"

    job = SendJob([b"fresh"], False, 10.0, ResendPolicy(retry_unknown=True), b"method", encode_resend)
    for expected, other, times in (
        (b"fresh", b"resent", 0),
        (b"resent", b"fresh", 1),
        (b"resent", b"fresh", 1),
    ):
        job.begin(NODES[0])
        frame = job.encode_request(0.0, 1)
        assert expected in frame
        assert other not in frame
        assert len(encodings) == times
        job.take_failure(NODES[0], CallVerdict.LOST, "lost", False)


def test_a_delayed_send_is_encoded_once_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second attempt says that it is not fresh; what the application changes meanwhile is not in it."""
    encoded: list[Any] = []

    def counted(wire: Any, args: StructArgs) -> bytes:
        encoded.append(wire.fresh)
        return encode(wire, args)

    monkeypatch.setattr(producing, "encode", counted)
    properties = {"a": "b"}
    message = OutgoingMessage("t", b"body", properties=properties)
    job = Outbox(ProducerSettings(client_id="me")).job_of_delay(message, When(delay_ms=5), 10.0)
    job.begin(NODES[0])
    first = job.encode_request(0.0, 1)
    assert encoded == [True]
    properties["a"] = "c"
    job.take_failure(NODES[0], CallVerdict.LOST, "lost", False)
    job.begin(NODES[0])
    second = job.encode_request(0.0, 1)
    assert encoded == [True, None]
    assert b"\x01a\x01b" in first
    assert b"\x01a\x01b" in second
