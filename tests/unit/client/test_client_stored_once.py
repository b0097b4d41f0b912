"""Producers and a cluster, which may recognise resends, over a network that loses, delays and overtakes: no
message is stored twice, and the reported outcomes are true."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from thriftpy2.protocol.compact import TCompactProtocol
from thriftpy2.transport import TMemoryBuffer

from ddmq_client import NotStoredError, OutgoingMessage, SendResult
from ddmq_client.core.frames import producer_field
from ddmq_client.core.nodes import Node, ProxyAddress, Rotation
from ddmq_client.core.selectors import ANY
from ddmq_client.core.sending import ResendPolicy, SendJob
from ddmq_client.core.sequences import Sequences
from ddmq_client.core.verdicts import CallVerdict
from ddmq_client.idl import producer as idl
from ddmq_client.wire.producing import encode_message
from tests.examples import examples

TIMEOUT_S = 10.0


class SimulatedCluster:
    """As docs/wire-additions.md says; what is answered it forgets at once. One that recognises no messages
    refuses those with keys and stores all others."""

    def __init__(self, recognises: bool) -> None:
        self._recognises = recognises
        self.stored: Counter[bytes] = Counter()
        self._recorded: dict[Any, tuple[int, bytes]] = {}
        self._below: Counter[bytes] = Counter()

    def take(self, frame: bytes, codes: list[int]) -> list[SendResult]:
        """A request, whenever it comes; its messages are answered these codes where that is not 0."""
        reader = TCompactProtocol(TMemoryBuffer(frame[4:]))
        method, _, _ = reader.read_message_begin()
        args = getattr(idl.ProducerService, method + "_args")()
        args.read(reader)
        messages = args.messages if method == "sendBatch" else [args.message]
        return [self._one(message, code) for message, code in zip(messages, codes, strict=False)]

    def _one(self, message: Any, code: int) -> SendResult:
        if code:
            return answer(code)
        if not self._recognises:
            return self._unrecognised(message)
        identity = message.idempotencyKey or (message.producerId, message.sequence)
        if message.sequence is not None:
            self._answered(message.producerId, message.answeredBelow)
            if identity not in self._recorded and message.sequence < self._below[message.producerId]:
                return answer(11)
        if identity in self._recorded:
            offset, body = self._recorded[identity]
            return answer(0, offset, 1 if body == message.body else 2)
        self.stored[message.body] += 1
        self._recorded[identity] = (sum(self.stored.values()), message.body)
        return answer(0, self._recorded[identity][0], 0)

    def _unrecognised(self, message: Any) -> SendResult:
        if message.idempotencyKey is not None:
            return answer(11)
        self.stored[message.body] += 1
        return answer(0, sum(self.stored.values()))

    def _answered(self, producer: bytes, below: int) -> None:
        for sequence in range(self._below[producer], below):
            self._recorded.pop((producer, sequence), None)
        self._below[producer] = max(self._below[producer], below)


def answer(code: int, offset: int | None = None, duplicate: int | None = None) -> SendResult:
    result = SendResult()
    result.code, result.text, result.offset, result.duplicate_code = code, "text", offset, duplicate
    return result


class RunningProducer:
    """One producer and its sends that are under way, at two proxies."""

    def __init__(self, name: bytes, random: Random, cluster: SimulatedCluster, late: list[bytes]) -> None:
        self._random = random
        self._cluster = cluster
        self._late = late  # requests that nobody waits for any more, and that still may arrive
        self._name = name
        self._sequences = Sequences(lambda: producer_field(name), nullcontext())
        self._rotation = Rotation(lambda: 0.5)
        self._rotation.update([ProxyAddress(host, 1) for host in "ab"])
        self._open: list[tuple[SendJob, list[bytes]]] = []
        self._sent = 0
        self.completed: list[tuple[bytes, SendResult]] = []

    def step(self) -> None:
        """Begin a send, or make an attempt of one, which may end it."""
        if not self._open or self._random.random() < 0.3:
            self._begin()
        at = self._random.randrange(len(self._open))
        job, bodies = self._open[at]
        cancelled = self._random.random() < 0.05
        if cancelled or self._attempt(job):
            job.end()
            del self._open[at]
            if not cancelled:
                self.completed += zip(bodies, job.results, strict=True)

    def _begin(self) -> None:
        count = self._random.choice((1, 1, 2, 5))
        bodies = [b"%s/%d" % (self._name, self._sent + at) for at in range(count)]
        self._sent += count
        keyed = frozenset(at for at in range(count) if self._random.random() < 0.2)
        messages = [
            OutgoingMessage("t", body, idempotency_key=body.decode() if at in keyed else None)
            for at, body in enumerate(bodies)
        ]
        encoded = [encode_message(message, ANY, "me", None) for message in messages]
        policy = ResendPolicy(attempts_max=self._random.choice((1, 3, 8)))
        job = SendJob(
            encoded, count > 1, TIMEOUT_S, policy, sequences=self._sequences, keyed=keyed
        )  # fmt: skip
        self._open.append((job, bodies))

    def _attempt(self, job: SendJob) -> bool:
        """True when the job has all of its results."""
        node = self._rotation.pick_node(job.tried)
        assert node is not None
        job.begin(node, self._rotation.recognises_resends(), self._rotation.recognises_keys())
        self._exchange(job, node, job.encode_request(0.0, 1))
        return job.next_wait(0.0, self._rotation.has_fresh(job.tried)) is None

    def _exchange(self, job: SendJob, node: Node, frame: bytes) -> None:
        elsewhere = self._rotation.has_fresh(job.tried)
        fate = self._random.random()
        if fate < 0.1:
            job.take_failure(node, CallVerdict.NOT_SENT, "not sent", elsewhere)
        elif fate < 0.2:
            job.take_failure(node, CallVerdict.LOST, "the request is lost", elsewhere)
        elif fate < 0.4:
            self._cluster.take(frame, [0] * 5)
            job.take_failure(node, CallVerdict.LOST, "the answer is lost", elsewhere)
        elif fate < 0.55:
            self._late.append(frame)
            job.take_failure(node, CallVerdict.TIMED_OUT, "it takes too long", elsewhere)
        else:
            job.take_results(node, self._cluster.take(frame, self._codes()), elsewhere)

    def _codes(self) -> list[int]:
        return [self._random.choice((0, 0, 0, 0, 0, 10, 12, 15, 20, 21)) for _ in range(5)]


@settings(deadline=None, derandomize=True, max_examples=examples(200))
@given(st.integers(0, 2**64), st.booleans())
def test_no_message_is_stored_twice_and_reported_outcomes_are_true(seed: int, recognises: bool) -> None:
    random = Random(seed)
    cluster, late = SimulatedCluster(recognises), list[bytes]()
    producers = [RunningProducer(name, random, cluster, late) for name in (b"p", b"q")]
    for _ in range(150):
        if late and random.random() < 0.3:
            cluster.take(late.pop(random.randrange(len(late))), [0] * 5)
        else:
            random.choice(producers).step()
    for frame in late:
        cluster.take(frame, [0] * 5)
    assert not cluster.stored or max(cluster.stored.values()) == 1, cluster.stored.most_common(3)
    for body, result in [completed for producer in producers for completed in producer.completed]:
        if result.stored:
            assert cluster.stored[body] == 1, "reported as stored"
            assert not result.body_differs
        elif isinstance(result.error, NotStoredError):
            assert cluster.stored[body] == 0, "reported as not stored"
        assert result.code != 11 or not recognises, "nothing is asked about that was forgotten"
