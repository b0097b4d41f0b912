"""Sends with an identity on Kafka, against a log that counts: each is stored once, whoever is killed.

The machine plays senders, owners and the log. An owner decides with its SendWindow and begins commits, which
end as stored, not stored, or in doubt: then the log alone knows. At any time the owner is killed or loses its
shard. Its commits in flight are then decided one way or the other, and the next owner rebuilds its window
from the end of the log. A former owner goes on deciding, and what it commits is fenced.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backend.kafka.sends.window import (
    AdmissionKind,
    EntryRow,
    Reservation,
    SendWindow,
    decode_rows,
    encode_rows,
)
from backend.records import FirstStored
from ddmq_common.errors import BoundReachedError, CallerError
from ddmq_common.send_identity import key_identity, sequence_identity
from tests.examples import examples

WINDOW_MS = 80_000
TAIL_MS = 30_000  # of numbers
KEYS_MAX = 60
PRODUCERS = (b"\x01", b"\x02")


@dataclass
class OpenNumber:
    """A number that a producer has not got an answer for. `since_ms`: its first attempt, None before."""

    number: int
    since_ms: int | None = None


@dataclass
class Producer:
    """A client: its open sends, and the next number."""

    name: bytes
    open: list[OpenNumber] = field(default_factory=list)
    following: int = 0

    @property
    def below(self) -> int:
        return min((sent.number for sent in self.open), default=self.following)


@dataclass
class Commit:
    """A transaction in flight: what it would store."""

    window: SendWindow
    epoch: int
    reservation: Reservation
    answer: object  # the OpenNumber that is answered, or None for a key


class SendWindowMachine(RuleBasedStateMachine):
    """`stored`: the name, place and time of each record in the message queue. `log`: the entries."""

    @initialize()
    def begin(self) -> None:
        self.now_ms = 1_000_000
        self.epoch = 1
        self.stored: list[tuple[object, int, int]] = []
        self.log: list[tuple[bytes, int]] = []
        self.commits: list[Commit] = []
        self.former: list[SendWindow] = []
        self.producers = [Producer(name) for name in PRODUCERS]
        self.ids = 0
        self.window = self._rebuild(numbers=False)
        self.numbers = self._rebuild(numbers=True)

    def _rebuild(self, numbers: bool) -> SendWindow:
        window = SendWindow(WINDOW_MS, KEYS_MAX)
        since_ms = self.now_ms - (TAIL_MS if numbers else WINDOW_MS)
        for data, stored_ms in self.log:
            rows = [row for row in decode_rows(data) if row.identity.startswith("s") is numbers]
            if stored_ms >= since_ms:
                window.restore(rows, stored_ms)
        if numbers:
            window.forget_before(since_ms)
        window.start(self.now_ms, self.now_ms / 1000)
        return window

    def _offset_of(self, name: object, since_ms: int) -> int | None:
        return next(
            (offset for each, offset, at in reversed(self.stored) if each == name and at >= since_ms), None
        )

    # --- sends

    def _admit(
        self, window: SendWindow, identity: str, name: object, since_ms: int, answer: OpenNumber | None
    ) -> FirstStored | None:
        self.ids += 1
        try:
            admission = window.admit_send(
                identity, self.ids.to_bytes(16), 0, 1 << 40, self.now_ms, self.now_ms / 1000
            )
        except (CallerError, BoundReachedError) as error:
            if isinstance(error, CallerError) and answer is not None:
                self._give_up(answer)
            return None
        if admission.kind is AdmissionKind.NEW:
            assert admission.reservation is not None
            if window in (self.window, self.numbers):
                in_flight = [c for c in self.commits if c.epoch == self.epoch and c.window is window]
                assert all(c.reservation.name != admission.reservation.name for c in in_flight)
                assert self._offset_of(name, since_ms) is None, "it is stored already"
            epoch = self.epoch if window in (self.window, self.numbers) else self.epoch - 1
            self.commits.append(Commit(window, epoch, admission.reservation, answer))
        elif admission.kind is AdmissionKind.STORED:
            assert admission.first is not None
            offset = self._offset_of(name, 0)
            assert admission.first.offset == offset, "the answer is the location of the record"
            return admission.first
        return None

    @rule(key=st.integers(0, 12), body=st.sampled_from([b"a", b"b"]))
    def send_key(self, key: int, body: bytes) -> None:
        identity = key_identity(b"t", b"%d" % key, body)
        self._admit(self.window, identity, ("key", key), self.now_ms - WINDOW_MS, None)

    @rule(index=st.integers(0, 1))
    def send_number(self, index: int) -> None:
        producer = self.producers[index]
        sent = OpenNumber(producer.following, self.now_ms)
        producer.open.append(sent)
        producer.following += 1
        self._send_number(producer, sent, resent=False)

    @precondition(lambda self: any(producer.open for producer in self.producers))
    @rule(data=st.data())
    def resend_number(self, data: st.DataObject) -> None:
        producer = data.draw(st.sampled_from([each for each in self.producers if each.open]))
        self._send_number(producer, data.draw(st.sampled_from(producer.open)), resent=True)

    def _send_number(self, producer: Producer, sent: OpenNumber, resent: bool) -> None:
        assert sent.since_ms is not None
        age_ms = self.now_ms - sent.since_ms if resent else None
        identity = sequence_identity(producer.name, sent.number, producer.below, age_ms)
        name = (producer.name, sent.number)
        if self._admit(self.numbers, identity, name, 0, sent) is not None:
            self._give_up(sent)

    def _give_up(self, sent: OpenNumber) -> None:
        """The producer has its answer, or was told that the outcome is not known."""
        for producer in self.producers:
            if sent in producer.open and any(each is sent for each in producer.open):
                producer.open = [each for each in producer.open if each is not sent]

    @precondition(lambda self: self.former)
    @rule(key=st.integers(0, 12))
    def send_key_to_a_former_owner(self, key: int) -> None:
        window = self.former[-1]
        try:
            admission = window.admit_send(
                key_identity(b"t", b"%d" % key, b"a"), bytes(16), 0, 1 << 40, self.now_ms, self.now_ms / 1000
            )
        except BoundReachedError:
            return
        if admission.kind is AdmissionKind.NEW:
            assert admission.reservation is not None
            self.commits.append(Commit(window, self.epoch - 1, admission.reservation, None))

    # --- commits

    def _write(self, commit: Commit) -> int:
        """The transaction is stored: record and entry."""
        reservation, offset = commit.reservation, len(self.stored)
        name: object = reservation.name
        if isinstance(name, bytes):
            name = next(
                ("key", key) for key in range(13) if key_identity(b"t", b"%d" % key, b"")[1:33] == name.hex()
            )
        else:
            assert isinstance(name, tuple)
            name = (bytes.fromhex(name[0]), name[1])
        self.stored.append((name, offset, self.now_ms))
        self.log.append((encode_rows([reservation.to_row(offset)]), self.now_ms))
        return offset

    @precondition(lambda self: self.commits)
    @rule(data=st.data(), stored=st.booleans())
    def commit_ends(self, data: st.DataObject, stored: bool) -> None:
        commit = self.commits.pop(data.draw(st.integers(0, len(self.commits) - 1)))
        if stored and commit.epoch == self.epoch:
            offset = self._write(commit)
            commit.window.confirm_stored(commit.reservation, offset, self.now_ms, self.now_ms / 1000)
            if isinstance(commit.answer, OpenNumber):
                self._give_up(commit.answer)
        else:
            commit.window.release(commit.reservation)

    # --- the owner

    @rule(data=st.data())
    def owner_is_killed(self, data: st.DataObject) -> None:
        """Or the outcome of one of its commits is in doubt. What is in flight ends before the take-over."""
        for commit in self.commits:
            if commit.epoch == self.epoch and data.draw(st.booleans()):
                self._write(commit)
        self.commits = []
        self.former = [self.window]
        self.epoch += 1
        self.window, self.numbers = self._rebuild(numbers=False), self._rebuild(numbers=True)

    @rule(seconds=st.integers(1, 20))
    def time_passes(self, seconds: int) -> None:
        self.now_ms += seconds * 1000

    # --- what is promised

    @invariant()
    def each_number_is_stored_once(self) -> None:
        names = [name for name, _, _ in self.stored if isinstance(name, tuple) and name[0] != "key"]
        assert len(names) == len(set(names))

    @invariant()
    def each_key_is_stored_once_in_its_window(self) -> None:
        last: dict[object, int] = {}
        for name, _, at_ms in self.stored:
            if isinstance(name, tuple) and name[0] == "key":
                assert at_ms - last.get(name, -WINDOW_MS - 1) > WINDOW_MS - 1
                last[name] = at_ms


TestSendWindow = SendWindowMachine.TestCase
TestSendWindow.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)


def test_rows_come_back_as_they_were() -> None:
    rows = [EntryRow("k" + "0" * 40, b"i" * 16, (1 << 48) - 1, 3, 1 << 40), EntryRow("s01.2.0", b"", 1, 0, 0)]
    assert decode_rows(encode_rows(rows)) == rows
    assert decode_rows(encode_rows([])) == []
