"""Token buckets and rate limiters: never more than the rate, and nobody starves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq_common.token_bucket import TokenBucket
from proxy_producer.topics import RateLimiter, longest_wait


@given(
    st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 40)), min_size=1, max_size=60),
    st.floats(1, 200),
    st.floats(1, 50),
)
def test_what_passes_at_once_stays_under_rate_and_burst(steps, rate, burst):
    """In any window from an instant on, at most burst + rate x time passes without waiting, give or take
    one amount larger than the burst, which a full bucket lets through on credit."""
    now, passed, largest = 0.0, 0, 0
    bucket = TokenBucket(rate, burst, now)
    for pause, amount in steps:
        now += pause
        if bucket.wait_s(amount, now) == 0:
            bucket.take_tokens(amount)
            passed += amount
            largest = max(largest, amount)
    assert passed <= burst + rate * now + max(0, largest - burst) + 1e-6


@given(st.lists(st.integers(1, 20), min_size=2, max_size=30), st.floats(1, 100))
def test_those_who_wait_go_in_the_order_they_came(amounts, rate):
    bucket = TokenBucket(rate, 10, 0.0)
    ready = []
    for index, amount in enumerate(amounts):
        now = index * 0.001
        wait = bucket.wait_s(amount, now)
        bucket.take_tokens(amount)
        if wait > 0:
            ready.append(now + wait)
    assert ready == sorted(ready)


def test_a_bucket_refills_to_its_burst_and_no_further():
    bucket = TokenBucket(10, 5, 0.0)
    bucket.wait_s(5, 0.0)
    bucket.take_tokens(5)
    assert bucket.wait_s(1, 0.0) == pytest.approx(0.1)
    assert bucket.wait_s(5, 100.0) == 0
    assert bucket.tokens == 5


def test_more_than_the_burst_passes_a_full_bucket_and_is_paid_for_later():
    bucket = TokenBucket(10, 5, 0.0)
    assert bucket.wait_s(50, 0.0) == 0
    bucket.take_tokens(50)
    assert bucket.wait_s(1, 0.0) == pytest.approx(4.6)


def test_a_clock_that_steps_back_takes_nothing_away():
    bucket = TokenBucket(10, 5, 100.0)
    assert bucket.wait_s(5, 50.0) == 0


def test_a_gate_waits_for_its_slower_bucket_and_names_its_limits():
    limiter = RateLimiter("topic 'x'", 10, 100, 1.0, 0.0)
    limiter.take_tokens(10, 150)
    assert limiter.wait_s(1, 1, 0.0) == pytest.approx(0.51)
    assert limiter.describe() == "topic 'x' is limited to 10 messages/s and 100 bytes/s"
    assert RateLimiter("y", 0, 0, 1.0, 0.0).open_always


def test_longest_names_the_gate_that_holds_back():
    fast, slow = RateLimiter("fast", 100, 0, 0.01, 0.0), RateLimiter("slow", 1, 0, 1.0, 0.0)
    assert longest_wait((fast, slow), 1, 1, 0.0) == (0.0, None)
    for limiter in (fast, slow):
        limiter.take_tokens(1, 1)
    wait, limiter = longest_wait((fast, slow), 1, 1, 0.0)
    assert wait == pytest.approx(1.0)
    assert limiter is slow
