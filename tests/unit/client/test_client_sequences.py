"""Numbers of messages: against a model, on the wire, in a job; every end of a send gives them back."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Collection
from concurrent.futures import CancelledError, Future
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thriftpy2.protocol.compact import TCompactProtocol
from thriftpy2.transport import TMemoryBuffer

from ddmq_client import InvalidMessageError, NotStoredError, OutgoingMessage, SendResult, UnknownOutcomeError
from ddmq_client.aio.router import AsyncProxyRouter
from ddmq_client.aio.sender import AsyncJobSender
from ddmq_client.core.frames import producer_field
from ddmq_client.core.nodes import Node, ProxyAddress, Rotation
from ddmq_client.core.pipeline import QueuedSend
from ddmq_client.core.selectors import ANY
from ddmq_client.core.sending import ResendPolicy, SendJob
from ddmq_client.core.sequences import OPEN_MAX, Sequences
from ddmq_client.core.settings import ProducerSettings
from ddmq_client.core.verdicts import CallVerdict
from ddmq_client.errors import BusyError, ClosedError
from ddmq_client.idl import producer as idl
from ddmq_client.net.background import Background
from ddmq_client.net.router import ProxyRouter
from ddmq_client.net.sender import JobSender
from ddmq_client.net.sync import now
from ddmq_client.outbox import Outbox
from ddmq_client.wire.producing import encode_message
from tests.examples import examples

FIXED = settings(deadline=None, derandomize=True)
PRODUCER = producer_field(b"p" * 16)


def new_sequences() -> Sequences:
    return Sequences(lambda: PRODUCER, nullcontext())


def all_released(sequences: Sequences) -> bool:
    """The next number is the lowest that is out."""
    numbers = sequences.take_numbers(1)
    assert numbers is not None
    is_lowest = sequences.lowest == numbers.start
    sequences.give_back(numbers)
    return is_lowest


# --- the numbers


@settings(FIXED, max_examples=examples(300))
@given(st.data())
def test_numbers_against_a_model(data: st.DataObject) -> None:
    sequences, out, following = new_sequences(), [], 0
    for _ in range(data.draw(st.integers(0, 40))):
        if out and data.draw(st.booleans()):
            sequences.give_back(out.pop(data.draw(st.integers(0, len(out) - 1))))
        else:
            count = data.draw(st.sampled_from([1, 1, 2, 3, 500, 20_000, OPEN_MAX]))
            lowest = min((numbers.start for numbers in out), default=following)
            numbers = sequences.take_numbers(count)
            assert (numbers is None) == (following + count - lowest > OPEN_MAX)
            if numbers is not None:
                assert numbers == range(following, following + count), "each number once"
                out.append(numbers)
                following += count
        assert sequences.lowest == min((numbers.start for numbers in out), default=following)
    for numbers in out:
        sequences.give_back(numbers)
    assert sequences.lowest == following


def test_a_long_request_costs_no_more() -> None:
    """One request that does not end, and as many others as there may be meanwhile."""
    sequences = new_sequences()
    pending = sequences.take_numbers(1)
    assert pending is not None
    for _ in range(OPEN_MAX - 1):
        numbers = sequences.take_numbers(1)
        assert numbers is not None
        sequences.give_back(numbers)
    assert sequences.take_numbers(1) is None
    assert sequences.lowest == 0
    sequences.give_back(pending)
    assert sequences.lowest == OPEN_MAX
    assert sequences.take_numbers(OPEN_MAX) is not None


def test_the_producer_is_named_with_its_first_number() -> None:
    """A process that forks before that has another name in each of the two."""
    names = iter((b"a", b"b"))
    sequences = Sequences(lambda: next(names), nullcontext())
    assert sequences.producer == b""
    for _ in range(3):
        sequences.take_numbers(1)
        assert sequences.producer == b"a"


def test_many_threads_share_the_numbers() -> None:
    sequences, collected = Sequences(lambda: PRODUCER, threading.Lock()), []

    def work() -> None:
        for count in (1, 2, 3) * 300:
            numbers = sequences.take_numbers(count)
            assert numbers is not None
            collected.extend(numbers)
            sequences.give_back(numbers)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(collected) == list(range(4 * 6 * 300))
    assert all_released(sequences)


# --- on the wire


def arguments(frame: bytes) -> Any:
    reader = TCompactProtocol(TMemoryBuffer(frame[4:]))
    method, _, _ = reader.read_message_begin()
    args = getattr(idl.ProducerService, method + "_args")()
    args.read(reader)
    return args


def identity(message: Any) -> tuple[Any, ...]:
    return message.idempotencyKey, message.producerId, message.sequence, message.answeredBelow


@pytest.mark.parametrize("group", [None, "group"])
@pytest.mark.parametrize("first", [0, 63, 64, 8_191, 8_192, 1_048_575, 1_048_576, 2**40])
def test_a_number_is_read_as_it_was_meant(group: str | None, first: int) -> None:
    encoded = encode_message(OutgoingMessage("t", b"x", "key", "tag", {"a": "b"}), ANY, "me", group)
    sequences = new_sequences()
    for start in range(0, first, OPEN_MAX) if first <= 2**21 else ():
        sequences.give_back(sequences.take_numbers(min(OPEN_MAX, first - start)) or range(0))
    if first > 2**21:
        sequences.give_back(range(first))  # as if so many had been issued
        first = 0
    job = SendJob([encoded], False, 3.0, ResendPolicy(), sequences=sequences)
    job.begin(NODE)
    message = arguments(job.encode_request(0.0, 1)).message
    assert (message.topic, message.key, message.tags, message.body) == ("t", "key", "tag", b"x")
    assert (message.clientId, message.producerGroup, message.properties) == ("me", group, {"a": "b"})
    assert identity(message) == (None, b"p" * 16, first, sequences.lowest)


NODE = Node(ProxyAddress("a", 1))


def encoded(count: int, keyed: Collection[int] = ()) -> list[bytes]:
    return [
        encode_message(
            OutgoingMessage("t", b"%d" % at, idempotency_key=f"k{at}" if at in keyed else None),
            ANY, "me", None,
        )
        for at in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("count", [2, 14, 15, 200])
def test_a_batch_has_its_numbers_and_keys(count: int) -> None:
    sequences = new_sequences()
    pending = sequences.take_numbers(5)
    job = SendJob(encoded(count, {1}), True, 3.0, ResendPolicy(), sequences=sequences, keyed={1})
    job.begin(NODE)
    messages = arguments(job.encode_request(0.0, 1)).messages
    assert [message.body for message in messages] == [b"%d" % at for at in range(count)]
    expected = [(None, b"p" * 16, 5 + at, 0) for at in range(count)]
    expected[1] = ("k1", None, None, None)
    assert [identity(message) for message in messages] == expected
    assert pending is not None
    sequences.give_back(pending)
    assert arguments(job.encode_request(0.0, 2)).messages[0].answeredBelow == 5, (
        "the lowest number when the request is encoded"
    )
    job.end()
    job.end()
    assert sequences.lowest == 5 + count


# --- in a job


def result(code: int, duplicate: int | None = None, offset: int | None = 7) -> SendResult:
    answer = SendResult()
    answer.code, answer.text, answer.duplicate_code = code, "told", duplicate
    answer.message_id, answer.offset = "0" * 32, offset
    return answer


STEPS = st.sampled_from(
    [0, 10, 11, 12, 13, 15, 20, 21, CallVerdict.NOT_SENT, CallVerdict.LOST, CallVerdict.TIMED_OUT]
)
UNCERTAIN = (10, 12, CallVerdict.LOST, CallVerdict.TIMED_OUT)


@FIXED
@given(
    st.lists(STEPS, min_size=1, max_size=12),
    st.sampled_from(["", "number", "key"]),
    st.sampled_from([None, True, False]),
    st.booleans(),
    st.integers(1, 6),
)
def test_a_job_against_a_model(
    steps: list[int | CallVerdict], identified: str, recognised: bool | None, elsewhere: bool, most: int
) -> None:
    sequences = new_sequences() if identified == "number" else None
    keyed = {0} if identified == "key" else ()
    policy = ResendPolicy(attempts_max=most)
    job = SendJob(encoded(1, keyed), False, 10.0, policy, sequences=sequences, keyed=keyed)
    is_safe = {"": False, "number": recognised is True, "key": recognised is not False}[identified]
    uncertain, over = False, False
    for sent, step in enumerate(steps, 1):
        job.begin(NODE, recognised, recognised)
        assert job.attempt_deadline(0.0) == (5.0 if is_safe and sent < most else 10.0)
        if isinstance(step, CallVerdict):
            job.take_failure(NODE, step, "no answer", elsewhere)
        else:
            job.take_results(NODE, [result(step)], elsewhere)
        uncertain |= step in UNCERTAIN
        over = job.next_wait(0.0, elsewhere) is None
        if step in UNCERTAIN:
            assert over == (not is_safe or sent == most)
        if over:
            break
    (outcome,) = job.results
    if outcome.stored:
        assert step == 0
    else:
        assert isinstance(outcome.error, UnknownOutcomeError) == uncertain, "unknown once is unknown for good"
    job.end()
    if sequences is not None:
        assert all_released(sequences)


@pytest.mark.parametrize("then", [CallVerdict.NOT_SENT, CallVerdict.THROTTLED, CallVerdict.LEAVING])
def test_what_may_be_stored_is_sent_no_more_once_it_is_not_recognised(then: CallVerdict) -> None:
    """Even where the last attempt certainly stored nothing: the one before may have."""
    job = SendJob(encoded(1), False, 10.0, ResendPolicy(), sequences=new_sequences())
    job.begin(NODE, True)
    job.take_failure(NODE, CallVerdict.LOST, "lost", False)
    assert job.next_wait(0.0, False) is not None
    job.begin(NODE, False)
    job.take_failure(NODE, then, "told", False)
    assert job.next_wait(0.0, False) is None
    assert isinstance(job.results[0].error, UnknownOutcomeError)


@pytest.mark.parametrize(
    ("results", "recognises"),
    [
        ([result(0, 0)], True),
        ([result(0, 1)], True),
        ([result(0)], False),
        ([result(1)], False),
        ([result(12)], None),
        ([result(0, offset=None)], None),  # delayed
        ([result(0, 0), result(15), result(0, 0)], True),
        ([result(0, 0), result(0)], False),
        ([result(0), result(0, 0)], False),
        ([result(15), result(12)], None),
    ],
)
def test_what_results_show_of_a_proxy(results: list[SendResult], recognises: bool | None) -> None:
    node = Node(ProxyAddress("a", 1))
    count = len(results)
    job = SendJob(encoded(count), count > 1, 10.0, ResendPolicy(), sequences=new_sequences())
    job.begin(node)
    job.take_results(node, results, False)
    assert node.recognises is recognises
    unseen = Node(ProxyAddress("b", 1))
    unmarked = SendJob(encoded(count), count > 1, 10.0, ResendPolicy())
    unmarked.begin(unseen)
    unmarked.take_results(unseen, [result(0)] * count, False)
    assert unseen.recognises is None, "what had neither number nor key shows nothing"


def test_what_a_key_s_result_shows_is_about_keys_alone() -> None:
    """A proxy on Kafka recognises keys, but no numbers (`store_once: keys`)."""
    node = Node(ProxyAddress("a", 1))
    job = SendJob(encoded(2, {0}), True, 10.0, ResendPolicy(), sequences=new_sequences(), keyed={0})
    job.begin(node)
    job.take_results(node, [result(0, 0), result(0)], False)
    assert (node.recognises_keys, node.recognises) == (True, False)
    job = SendJob(encoded(2, {0}), True, 10.0, ResendPolicy(), sequences=new_sequences(), keyed={0})
    job.begin(node, node.recognises, node.recognises_keys)
    job.take_failure(node, CallVerdict.LOST, "lost", False)
    assert job.next_wait(0.0, False) is not None
    assert isinstance(job.results[1].error, UnknownOutcomeError)
    job.begin(node, node.recognises, node.recognises_keys)
    job.take_results(node, [result(0, 1)], False)
    assert job.next_wait(0.0, False) is None, "the key alone was sent again"
    assert job.results[0].duplicate


def test_what_an_old_proxy_answers_shows_that_it_recognises_nothing() -> None:
    node, old = Node(ProxyAddress("a", 1)), result(0, offset=None)
    old.message_id = None
    job = SendJob(encoded(1), False, 10.0, ResendPolicy(), sequences=new_sequences())
    job.begin(node)
    job.take_results(node, [old], False)
    assert node.recognises is False


def test_what_the_nodes_of_a_cluster_show_together() -> None:
    rotation = Rotation(lambda: 0.5)
    rotation.update([ProxyAddress(host, 1) for host in "abc"])
    a, b, _ = rotation.nodes
    assert rotation.recognises_resends() is None
    a.recognises = True
    assert rotation.recognises_resends() is True, "a node without results is as the others"
    b.recognises = False
    assert rotation.recognises_resends() is False
    rotation.update([ProxyAddress(host, 1) for host in "ac"])
    assert rotation.recognises_resends() is True, "a removed node does not count"


def test_what_may_be_stored_says_for_how_long_it_is_under_way() -> None:
    """Until its time is up, so that it is not less when somebody looks."""
    job = SendJob(encoded(4, {3}), True, 10.0, ResendPolicy(), sequences=new_sequences(), keyed={3})
    job.begin(NODE, True)
    first = arguments(job.encode_request(2.5, 1)).messages
    assert [message.underWayMs for message in first] == [None] * 4
    job.take_results(NODE, [result(12), result(15), result(0, 0), result(12)], False)
    job.begin(NODE, True)
    resent = arguments(job.encode_request(4.0, 2)).messages
    assert [(message.sequence, message.underWayMs) for message in resent] == [
        (0, 7_500),
        (1, None),
        (None, None),
    ]
    job.end()


def test_a_resend_that_is_no_longer_recognised_is_an_unknown_outcome() -> None:
    job = SendJob(encoded(1), False, 10.0, ResendPolicy(), sequences=new_sequences())
    job.begin(NODE, True)
    job.take_failure(NODE, CallVerdict.LOST, "lost", True)
    job.begin(NODE, True)
    job.take_results(NODE, [result(11)], True)
    assert job.next_wait(0.0, True) is None
    assert isinstance(job.results[0].error, UnknownOutcomeError)
    assert job.results[0].code == 11


def test_past_the_bound_a_message_goes_without_a_number() -> None:
    sequences = new_sequences()
    assert sequences.take_numbers(OPEN_MAX) is not None
    job = SendJob(encoded(1), False, 10.0, ResendPolicy(), sequences=sequences)
    job.begin(NODE, True)
    assert identity(arguments(job.encode_request(0.0, 1)).message) == (None,) * 4
    job.take_failure(NODE, CallVerdict.LOST, "lost", False)
    assert job.next_wait(0.0, False) is None, "and what may be stored is not sent again"
    job.end()


# --- every end of a send


class ScriptedRouter:
    """Gives the node, then does what it was told to."""

    def __init__(self, *steps: BaseException | None) -> None:
        self._steps = list(steps)

    def pick_node(self, tried: object, deadline: float) -> Node | None:
        step = self._steps.pop(0)
        if step is not None:
            raise step
        return NODE

    def recognises_resends(self) -> bool | None:
        return None

    def lease(self, node: Node, deadline: float) -> Any:
        step = self._steps.pop(0)
        assert step is not None
        raise step


ENDS: list[tuple[Any, ...]] = [
    (NotStoredError("none"),), (BusyError("b"),), (ClosedError("c"),), (None, BusyError("b")),
    (None, ClosedError("c")), (None, RuntimeError("r")), (None, KeyboardInterrupt()), (None, SystemExit(1)),
    (None, CancelledError()),
]  # fmt: skip


@pytest.mark.parametrize("steps", ENDS)
def test_whatever_ends_a_send_gives_its_numbers_back(steps: tuple[Any, ...]) -> None:
    sequences = new_sequences()
    job = SendJob(encoded(3), True, now() + 60, ResendPolicy(), sequences=sequences)
    router: Any = ScriptedRouter(*steps)
    with suppress(type(steps[-1])):
        JobSender(router).run(job)
    assert all_released(sequences)


def test_a_producer_that_is_closed_meanwhile_gives_them_back() -> None:
    sequences, results = new_sequences(), []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        router = ProxyRouter([ProxyAddress("127.0.0.1", listener.getsockname()[1])], 4, b"\x00")
        job = SendJob(encoded(1), False, now() + 60, ResendPolicy(), sequences=sequences)
        thread = threading.Thread(target=lambda: results.extend(JobSender(router).run(job)))
        thread.start()
        connection, _ = listener.accept()
        assert connection.recv(4096)
        assert sequences.take_numbers(1) == range(1, 2)
        assert sequences.lowest == 0
        router.close(now() + 60)
        thread.join(60)
        connection.close()
    assert isinstance(results[0].error, UnknownOutcomeError)
    assert sequences.lowest == 1


def test_a_cancelled_task_gives_them_back() -> None:
    sequences = new_sequences()

    async def test() -> None:
        request_received = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(4096)
            request_received.set()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        router = AsyncProxyRouter([ProxyAddress("127.0.0.1", port)], 4, b"\x00")
        deadline = asyncio.get_running_loop().time() + 60
        job = SendJob(encoded(1), False, deadline, ResendPolicy(), sequences=sequences)
        task = asyncio.create_task(AsyncJobSender(router).run(job))
        await request_received.wait()
        assert sequences.take_numbers(1) == range(1, 2)
        assert sequences.lowest == 0
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await router.close(deadline)
        server.close()

    asyncio.run(test())
    assert sequences.lowest == 1


def test_sends_that_wait_when_a_producer_is_closed_have_no_number() -> None:
    """It gets its error, and no request was made of it."""
    settings_ = ProducerSettings(client_id="me", async_workers=1, batch_messages=1)
    outbox = Outbox(settings_)
    entered, leave = threading.Event(), threading.Event()

    class BlockedSender:
        def run(self, job: SendJob) -> list[SendResult]:
            entered.set()
            assert leave.wait(60)
            job.give_up(NotStoredError("told"))
            return job.results

    sender: Any = BlockedSender()
    background = Background(settings_, outbox, sender)
    futures: list[Any] = []
    for _ in range(3):
        futures.append(Future())
        background.put(QueuedSend(encoded(1)[0], now() + 60, now() + 60, False, futures[-1], None))
    assert entered.wait(60)
    background.close(now())
    leave.set()
    for future in futures:
        with pytest.raises(NotStoredError):
            future.result(60)
    background.join(now() + 60)
    job = outbox.build_job(encoded(1), now() + 60)
    job.begin(NODE)
    message = arguments(job.encode_request(now(), 1)).message
    assert (message.sequence, message.answeredBelow) == (0, 0)


def test_a_message_that_cannot_be_encoded_takes_none() -> None:
    outbox = Outbox(ProducerSettings(client_id="me"))
    with pytest.raises(InvalidMessageError):
        outbox.job_of_message(OutgoingMessage("t", b""), 10.0)
    plan = outbox.plan_batch([OutgoingMessage("t", b""), OutgoingMessage("t", b"x")])
    job = outbox.job_of_request(plan, plan.requests[0], 10.0)
    job.begin(NODE)
    assert arguments(job.encode_request(0.0, 1)).message.sequence == 0
