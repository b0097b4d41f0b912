"""Queue choice against what a Java server computes with 64-bit numbers."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ddmq_common.queue_choice import choose_queue, murmur2

I64 = st.integers(-(1 << 63), (1 << 63) - 1)
I32 = st.integers(-(1 << 31), (1 << 31) - 1)


def naive(partition_id: int, hash_id: int, queues: int, any_queue: int) -> int:
    """Counting, without modulo or abs, on small stand-ins of the same remainder."""
    if partition_id < -1:
        return any_queue
    magnitude = partition_id
    if partition_id == -1:
        digits = str(hash_id).lstrip("-")
        magnitude = 0 if digits == "9223372036854775808" else int(digits)
    return magnitude - (magnitude // queues) * queues


@given(I32, I64, st.integers(1, 1_024), st.integers(0, 1_023))
@example(-1, -(1 << 63), 3, 0)
@example(-1, -3, 4, 0)
@example((1 << 31) - 1, 0, 7, 0)
def test_against_the_model(partition_id, hash_id, queues, any_queue):
    any_queue %= queues
    queue = choose_queue(partition_id, hash_id, queues, any_queue)
    assert queue == naive(partition_id, hash_id, queues, any_queue)
    assert 0 <= queue < queues


def test_the_table_of_compat():
    assert choose_queue(5, 99, 4, 3) == 1
    assert choose_queue(0, 99, 4, 3) == 0
    assert choose_queue(-1, 7, 4, 0) == choose_queue(-1, -7, 4, 0) == 3
    assert choose_queue(-1, -(1 << 63), 4, 3) == 0
    assert choose_queue(-2, 7, 4, 2) == 2
    assert choose_queue(-(1 << 31), 7, 4, 6) == 2


# What Kafka's own org.apache.kafka.common.utils.Utils.murmur2 gives, signed as in Java (its UtilsTest).
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", VECTORS)
def test_murmur2_is_that_of_kafka(key):
    assert murmur2(key) == VECTORS[key] & 0xFFFFFFFF


def _positive(key, queues):
    return (VECTORS[key] & 0x7FFFFFFF) % queues


@pytest.mark.parametrize("key", VECTORS)
@given(queues=st.integers(1, 1_024), round_robin=st.integers(0, 1_023), hash_id=I64)
def test_a_key_goes_where_kafka_puts_it_unless_a_queue_is_requested(key, queues, round_robin, hash_id):
    assert choose_queue(-2, hash_id, queues, round_robin, key) == _positive(key, queues)
    for partition_id in (-1, 0, 7):
        assert choose_queue(partition_id, hash_id, queues, round_robin, key) == choose_queue(
            partition_id, hash_id, queues, round_robin
        )
