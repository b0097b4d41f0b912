"""Remembered sends by owner: an identity or address that invents producers or keys displaces only its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend import idempotency
from backend.file_log.sends import decode_sends, encode_sends
from backend.idempotency import StoredSends
from backend.owner_shares import OwnerShares
from ddmq_common.errors import BoundReachedError, CallerError
from ddmq_common.security.policy import Identity
from ddmq_common.security.quotas import Quotas, SenderQuota
from ddmq_common.security.sender_quotas import SENDER_QUOTAS
from ddmq_common.send_identity import add_owner, key_identity, make_owner, owner_of, sequence_identity
from tests.examples import examples

NOW_MS = 1_000_000
ATTACKER, HONEST = make_owner("203.0.113.9"), make_owner("192.0.2.1")


def sequence(producer: bytes, number: int, owner: str, under_way_ms: int | None = None) -> str:
    return add_owner(sequence_identity(producer, number, 0, under_way_ms), owner)


def key(topic: bytes, number: int, owner: str) -> str:
    return add_owner(key_identity(topic, b"%d" % number, b"body"), owner)


def store(sends: StoredSends, text: str, incarnation: int = 1) -> None:
    sends.add_pending(text, bytes(16), 7, 0, incarnation, NOW_MS)


@pytest.mark.parametrize("restarts", [False, True])
def test_invented_producers_displace_only_those_of_their_owner(restarts: bool) -> None:
    """100,000 producers of one address; the producer of another one sends again, and is recognised."""
    sends = StoredSends()
    store(sends, sequence(b"honest", 0, HONEST))
    for number in range(idempotency.PRODUCERS_MAX // 2):
        store(sends, sequence(b"%d" % number, 0, ATTACKER))
    sends.confirm_pending()
    if restarts:
        data, sends = encode_sends(sends), StoredSends()
        decode_sends(data, sends)
    for number in range(idempotency.PRODUCERS_MAX):
        store(sends, sequence(b"a%d" % number, 0, ATTACKER))
    sends.confirm_pending()
    assert len(sends.producers) == idempotency.PRODUCERS_MAX
    assert sends.find_first(sequence(b"honest", 0, HONEST, under_way_ms=1), 1, NOW_MS) is not None
    assert sends.find_first(sequence(b"honest", 1, HONEST, under_way_ms=1), 1, NOW_MS) is None
    with pytest.raises(CallerError, match="not known any more"):
        sends.find_first(sequence(b"0", 0, ATTACKER, under_way_ms=1), 1, NOW_MS)


def test_many_sequences_displace_only_producers_of_their_owner() -> None:
    sends = StoredSends()
    store(sends, sequence(b"honest", 0, HONEST))
    for producer in range(30):
        for number in range(10_000):
            store(sends, sequence(b"%d" % producer, number, ATTACKER))
        sends.confirm_pending()
    assert sends.forgotten > 0
    assert sends.find_first(sequence(b"honest", 0, HONEST), 1, NOW_MS) is not None


def test_keys_in_many_topics_leave_keys_for_other_owners() -> None:
    """One address sends keys to 200 topics until it is rejected; another one still stores 400."""
    sends = StoredSends(keys_max=20_000)
    accepted = Counter[str]()
    for number in range(300):
        for topic in range(200):
            text = key(b"topic %d" % topic, number, ATTACKER)
            try:
                sends.find_first(text, 2 + topic, NOW_MS)
            except BoundReachedError:
                continue
            store(sends, text, 2 + topic)
            accepted[ATTACKER] += 1
        sends.confirm_pending()
    assert 14_000 < accepted[ATTACKER] <= 15_000
    for number in range(400):
        text = key(b"orders", number, HONEST)
        assert sends.find_first(text, 1, NOW_MS) is None
        store(sends, text)
    sends.confirm_pending()


def test_the_keys_of_an_owner_expire_with_their_slice() -> None:
    sends = StoredSends(window_ms=1_000, keys_max=8)
    for number in range(6):
        store(sends, key(b"topic %d" % number, number, ATTACKER), number)
    sends.confirm_pending()
    late = key(b"late", 1, ATTACKER)
    with pytest.raises(BoundReachedError, match="identity or address"):
        sends.find_first(late, 99, NOW_MS)
    assert sends.find_first(late, 99, NOW_MS + 3_000) is None


def test_a_key_of_another_identity_is_another_key() -> None:
    plain = key_identity(b"orders", b"order-17", b"body")
    assert len({plain, *(key_identity(b"orders", b"order-17", b"body", who) for who in ("", "a", "b"))}) == 3


def test_the_owner_is_not_part_of_an_identity() -> None:
    sends = StoredSends()
    sends.restore(sequence(b"p", 1, HONEST), bytes(16), 3, 0, 1, NOW_MS)
    sends.restore(key(b"orders", 1, HONEST), bytes(16), 4, 0, 1, NOW_MS)
    for text in (sequence(b"p", 1, ATTACKER), sequence_identity(b"p", 1, 0)):
        match = sends.find_first(text, 1, NOW_MS)
        assert match is not None
        assert match.offset == 3
    match = sends.find_first(key(b"orders", 1, ATTACKER), 1, NOW_MS)
    assert match is not None
    assert (match.offset, match.differs) == (4, False)
    assert owner_of(sequence(b"p", 1, HONEST)) == HONEST
    assert owner_of(sequence_identity(b"p", 1, 0)) == ""


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(-40, 60)), max_size=60))
def test_shares_agree_with_a_plain_count(changes: list[tuple[str, int]]) -> None:
    shares, model = OwnerShares(), Counter[str]()
    for owner, change in changes:
        amount = max(change, -model[owner])
        shares.add(owner, amount)
        model[owner] += amount
        assert shares.counts == {name: count for name, count in model.items() if count}
        if shares.counts:
            assert model[shares.find_largest()] == max(model.values())
    if not shares.counts:
        with pytest.raises(LookupError):
            shares.find_largest()


@pytest.fixture
def quotas() -> Iterator[None]:
    """The identity `app` may have two keys and two producers."""
    limited = Quotas()._replace(idempotency_keys=2, producers=2)
    SENDER_QUOTAS.use_identities([Identity("app", "client", quotas=limited), Identity("other", "client")])
    yield
    SENDER_QUOTAS.use_identities([])


@pytest.mark.parametrize("form", [key, sequence])
def test_an_identity_has_at_most_its_quota_until_the_oldest_expires(quotas: None, form: object) -> None:
    sends, app, other = StoredSends(window_ms=1_000), make_owner("app"), make_owner("other")

    def make(number: int, owner: str) -> str:
        return (
            key(owner.encode(), number, owner)
            if form is key
            else sequence(b"%s%d" % (owner.encode(), number), 0, owner)
        )

    for number in range(2):
        for owner in (app, other):
            assert sends.find_first(make(number, owner), 1, NOW_MS) is None
            store(sends, make(number, owner))
        sends.confirm_pending()
    with pytest.raises(
        BoundReachedError, match=r"allowed: 2 \((idempotency_keys|producers) in .*retry in 601 ms"
    ):
        sends.find_first(make(2, app), 1, NOW_MS + 400)
    assert sends.find_first(make(1, app), 1, NOW_MS + 400) is not None, "a resend is answered"
    assert sends.find_first(make(2, other), 1, NOW_MS + 400) is None
    expected = SenderQuota(2, 0) if form is key else SenderQuota(0, 2)
    assert sends.count_owned() == {app: expected, other: expected}
    SENDER_QUOTAS.use_identities([])
    assert sends.find_first(make(2, app), 1, NOW_MS + 400) is None
