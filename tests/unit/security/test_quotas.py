"""Quotas of identities: the counters against a naive model, and which quotas an identity has."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ddmq_common.security.callers import CallerTable
from ddmq_common.security.policy import ADMIN, NODE, IdentityEntry, Policy, RoleEntry
from ddmq_common.security.quotas import DEFAULTS, UNLIMITED, OverQuota, QuotaEntry, Quotas, Usage
from tests.examples import examples

STEPS = st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.4, 1.0, 7.0]), st.integers(0, 30)), max_size=60)


class ModelUsage:
    """All accepted requests with their times; the current window is looked through each time."""

    def __init__(self) -> None:
        self.accepted: list[tuple[float, int]] = []
        self.begin = float("-inf")

    def admits(self, size: int, now: float, requests: int, all_bytes: int) -> bool:
        if now >= self.begin + 1.0:
            self.begin = now
        window = [sent for time_s, sent in self.accepted if time_s >= self.begin]
        if len(window) >= requests or (sum(window) and sum(window) + size > all_bytes):
            return False
        self.accepted.append((now, size))
        return True


@settings(max_examples=examples(200), deadline=None)
@given(STEPS)
def test_requests_and_bytes_agree_with_a_model(steps: list[tuple[float, int]]) -> None:
    usage, model, now = Usage(Quotas(5, 60, 0, 0)), ModelUsage(), 100.0
    for step, size in steps:
        now += step
        over = usage.count_request(size, now)
        assert (over is None) == model.admits(size, now, 5, 60)
        if over is not None:
            assert over.quota in ("requests_per_s", "bytes_per_s")
            assert 0 < over.wait_s <= 1.0
            assert "allowed: " in over
    figures = usage.read_figures()
    assert figures.requests == len(model.accepted)
    assert figures.bytes == sum(size for _, size in model.accepted)


def test_a_rejected_request_is_accepted_after_its_wait() -> None:
    usage = Usage(Quotas(1, 0, 0, 0))
    assert usage.count_request(1, 5.0) is None
    over = usage.count_request(1, 5.25)
    assert isinstance(over, OverQuota)
    assert usage.count_request(1, 5.25 + over.wait_s) is None
    assert usage.read_figures().rejected == {"requests_per_s": 1}


def test_connections_and_creations_have_their_quotas() -> None:
    usage = Usage(Quotas(0, 0, 2, 3))
    assert [usage.count_connection() is None for _ in range(3)] == [True, True, False]
    usage.connections -= 1
    assert usage.count_connection() is None
    assert [usage.count_creation(0.0) is None for _ in range(4)] == [True, True, True, False]
    over = usage.count_creation(0.0)
    assert over is not None
    assert usage.count_creation(over.wait_s) is None


def test_those_who_have_not_logged_in_do_not_keep_others_out() -> None:
    """They are all one identity; the port closes silent connections of the address that has most."""
    anonymous = CallerTable(lambda: 0).anonymous.usage
    assert [anonymous.count_connection() for _ in range(DEFAULTS.connections + 1)] == [None] * (
        DEFAULTS.connections + 1
    )


def test_an_identity_has_its_own_quotas_then_the_most_of_its_roles_then_the_default() -> None:
    policy = Policy(
        {
            "own": IdentityEntry(roles=("low",), quotas=QuotaEntry(requests_per_s=7)),
            "both": IdentityEntry(roles=("low", "high")),
            "free": IdentityEntry(roles=("low", "none")),
            "plain": IdentityEntry(),
            "admin": IdentityEntry(kind=ADMIN),
            "node": IdentityEntry(kind=NODE),
        },
        {
            "low": RoleEntry(quotas=QuotaEntry(requests_per_s=10, connections=3)),
            "high": RoleEntry(quotas=QuotaEntry(requests_per_s=20)),
            "none": RoleEntry(quotas=QuotaEntry(requests_per_s=0)),
        },
    )
    quotas = {name: identity.quotas for name, identity in policy.identities.items()}
    assert quotas["own"] == DEFAULTS._replace(requests_per_s=7, connections=3)
    assert quotas["both"] == DEFAULTS._replace(requests_per_s=20, connections=3)
    assert quotas["free"].requests_per_s == 0
    assert quotas["plain"] == DEFAULTS
    assert quotas["admin"] == quotas["node"] == UNLIMITED


def test_changed_quotas_apply_to_a_caller_at_once() -> None:
    table = CallerTable(lambda: 0)
    table.apply(Policy({"app": IdentityEntry()}), {})
    caller = table.at_name("app")
    assert caller.usage.count_request(1, 0.0) is None
    table.apply(Policy({"app": IdentityEntry(quotas=QuotaEntry(requests_per_s=1))}), {})
    assert caller.usage.count_request(1, 0.5) is not None
    assert table.list_usage()["app"].requests == 1


def test_waiting_calls_and_messages_in_flight_have_their_quotas() -> None:
    usage = Usage(Quotas()._replace(waiting_calls=1, in_flight=10))
    assert usage.check_waiting() is None
    assert (usage.check_in_flight(), usage.limit_batch(100)) == (None, 10)
    usage.waiting_calls, usage.in_flight = 1, 9
    over = usage.check_waiting()
    assert over is not None
    assert over == "1 calls wait; allowed: 1 (waiting_calls in security.yaml); retry in 1001 ms"
    assert (usage.check_in_flight(), usage.limit_batch(100)) == (None, 1)
    usage.in_flight = 10
    assert usage.check_in_flight() is not None
    assert usage.read_figures().rejected == {"waiting_calls": 1, "in_flight": 1}
    assert (Usage().check_waiting(), Usage().check_in_flight(), Usage().limit_batch(7)) == (None, None, 7)


def test_a_request_may_make_several_at_once() -> None:
    usage = Usage(Quotas()._replace(created_per_hour=3))
    assert usage.count_creation(0.0, 0) is None
    assert usage.count_creation(0.0, 5) is None, "more than all, after an hour without any"
    over = usage.count_creation(0.0)
    assert over is not None
    assert usage.count_creation(over.wait_s) is None
    assert usage.created == 6
