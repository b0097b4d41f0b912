"""Sends that are stored once, against a naive model: a list of all that was stored, looked through each time.

The machine plays an engine: it asks, stores, makes frames count or takes them back, forgets what a producer
has an answer for, lets time pass, and starts again from files and a checkpoint, or from the stored records.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backend.file_log.sends import decode_sends, encode_sends
from backend.idempotency import ROW_BYTES, SLICES, StoredSends
from ddmq_common.errors import BoundReachedError, CallerError
from ddmq_common.send_identity import key_identity, sequence_identity
from tests.examples import examples

WINDOW_MS = 8_000
KEYS_MAX = 40


@dataclass(frozen=True)
class ModelSend:
    """One stored record. `producer`: b"" for one with a key; `number`: of the key, or the sequence."""

    producer: bytes
    number: int
    below: int
    text: str
    message_id: bytes
    offset: int
    queue_id: int
    incarnation: int
    stored_ms: int
    body: bytes = b""


class StoredSendsMachine(RuleBasedStateMachine):
    """`records`: what counts, in order. `frame`: what was noted and does not count yet."""

    @initialize()
    def begin(self) -> None:
        self.sends = StoredSends(WINDOW_MS, KEYS_MAX, saving=True)
        self.files: dict[int, bytes] = {}
        self.records: list[ModelSend] = []
        self.frame: list[ModelSend] = []
        self.now_ms = 1_000_000
        self.producers = [b"\x01", b"\x02" * 32]

    # --- what the model says

    def _first(self, producer: bytes, number: int, incarnation: int) -> ModelSend | None:
        for one in reversed(self.records + self.frame):
            if (one.producer, one.number) == (producer, number):
                alive = bool(producer) or one.stored_ms >= self.now_ms - WINDOW_MS
                return one if alive and one.incarnation == incarnation else None
        return None

    def _below(self, producer: bytes) -> int:
        return max((one.below for one in self.records if one.producer == producer), default=0)

    def _keys(self, age_ms: int, incarnation: int | None = None) -> int:
        return sum(
            not one.producer
            and one.stored_ms >= self.now_ms - age_ms
            and incarnation in (None, one.incarnation)
            for one in self.records + self.frame
        )

    def _send(
        self, producer: bytes, number: int, below: int, text: str, incarnation: int, body: bytes
    ) -> None:
        first = self._first(producer, number, incarnation)
        match = self.sends.find_first(text, incarnation, self.now_ms)
        if first is not None:
            assert match is not None, first
            assert match[:3] == (first.message_id, first.queue_id, first.offset)
            assert match.differs is (not producer and body != first.body)
            return
        assert match is None, (producer, number, match)
        at = len(self.records) + len(self.frame)
        stored = ModelSend(
            producer, number, below, text, at.to_bytes(16), at, at % 7, incarnation, self.now_ms, body
        )
        self.sends.add_pending(text, stored.message_id, at, stored.queue_id, incarnation, self.now_ms)
        self.frame.append(stored)

    # --- sends

    @rule(key=st.integers(0, 30), incarnation=st.integers(1, 3), body=st.sampled_from([b"a", b"b"]))
    def send_key(self, key: int, incarnation: int, body: bytes) -> None:
        text = key_identity(b"topic", b"key %d" % key, body)
        is_stored = self._first(b"", key, incarnation) is not None
        own, every = self._keys(WINDOW_MS, incarnation), self._keys(WINDOW_MS)
        try:
            self._send(b"", key, 0, text, incarnation, body)
        except BoundReachedError:
            longest_ms = WINDOW_MS + WINDOW_MS // SLICES  # a slice goes as a whole
            assert not is_stored
            assert self._keys(longest_ms, incarnation) >= KEYS_MAX - self._keys(longest_ms)
        else:
            assert is_stored or own < KEYS_MAX - every

    def _producer(self, index: int) -> bytes:
        """One that was heard of lately: who is silent for longer than the window is forgotten, some time."""
        producer = self.producers[index]
        stored_times = [one.stored_ms for one in self.records + self.frame if one.producer == producer]
        if stored_times and max(stored_times) < self.now_ms - WINDOW_MS:
            producer = self.producers[index] = b"%d at %d" % (index, self.now_ms)
        return producer

    @rule(index=st.integers(0, 1), step=st.integers(-4, 6), window=st.integers(0, 5))
    def send_sequence(self, index: int, step: int, window: int) -> None:
        producer = self._producer(index)
        below = self._below(producer)
        sequence = max(0, below + step)
        text = sequence_identity(producer, sequence, max(0, sequence - window))
        own = [one.number for one in self.frame if one.producer == producer]
        if sequence >= below or sequence in own:
            self._send(producer, sequence, max(0, sequence - window), text, 1, b"")
            return
        try:
            self.sends.find_first(text, 1, self.now_ms)
        except CallerError:
            return
        raise AssertionError(f"sequence {sequence} is below {below} and was taken")

    # --- frames

    @rule()
    def frame_counts(self) -> None:
        self.sends.confirm_pending()
        self.records += self.frame
        self.frame = []

    @rule()
    def frame_is_undone(self) -> None:
        self.sends.back_to(0)
        self.frame = []

    @precondition(lambda self: self.frame)
    @rule()
    def last_of_frame_is_undone(self) -> None:
        """As when one request of a frame cannot be packed."""
        self.frame.pop()
        self.sends.back_to(len(self.sends.pending) - 1)

    @precondition(lambda self: not self.frame)
    @rule(ms=st.sampled_from([1, 500, 1_000, 2_500, 8_001]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    # --- restarts

    @precondition(lambda self: not self.frame)
    @rule()
    def save(self) -> None:
        for one in self.sends.slices:
            data = self.files.get(one.number, b"")[: one.saved * ROW_BYTES]
            self.files[one.number] = data + bytes(one.unsaved)
            one.saved += len(one.unsaved) // ROW_BYTES
            one.unsaved.clear()

    @precondition(lambda self: not self.frame)
    @rule()
    def start_from_files(self) -> None:
        self.save()
        fresh = StoredSends(WINDOW_MS, KEYS_MAX, saving=True)
        data = encode_sends(self.sends)
        for number, rows, _ in decode_sends(data, fresh) if data else ():
            content = self.files[number]
            assert len(content) == rows * ROW_BYTES
            starts = range(0, len(content), ROW_BYTES)
            fresh.put_slice(number, [content[at : at + ROW_BYTES] for at in starts])
        self.sends = fresh

    @precondition(lambda self: not self.frame)
    @rule()
    def start_from_records(self) -> None:
        self.sends, self.files = StoredSends(WINDOW_MS, KEYS_MAX, saving=True), {}
        for one in self.records:
            self.sends.restore(
                one.text, one.message_id, one.offset, one.queue_id, one.incarnation, one.stored_ms
            )

    @invariant()
    def nothing_goes_before_its_time(self) -> None:
        assert not hasattr(self, "sends") or self.sends.forgotten == 0


TestStoredSends = StoredSendsMachine.TestCase
TestStoredSends.settings = settings(max_examples=examples(100), stateful_step_count=60, deadline=None)
