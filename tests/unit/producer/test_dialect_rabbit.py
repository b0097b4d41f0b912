"""The x-delay header, by the documentation of RabbitMQ's delayed message exchange.

README of rabbitmq/rabbitmq-delayed-message-exchange: under "Usage" the header is a delay in milliseconds and
a message without it is routed without delay; under "Performance Impact" a delay must be above 0 and at most
2^32 − 1 ms to hold. That fractions are cut, and that a delivered message carries the delay negated so that it
is not delayed again, is in rabbit_delayed_message_utils of that repository.
"""

import pytest

from ddmq_common.delays.command import DelayCommand
from ddmq_common.delays.schedules import ScheduleLimits
from proxy_producer.core.dialects import read_command, select_dialects

NOW = 1_795_289_273_456
RABBIT = select_dialects(["rabbit"])


def read(value):
    return read_command({b"x-delay": value}, RABBIT, NOW, ScheduleLimits())


def test_both_messages_of_the_readme():
    assert read(b"5000").due_ms == NOW + 5_000
    assert read(b"1000").due_ms == NOW + 1_000


def test_without_the_header_nothing_is_delayed():
    assert read_command({b"x-delayed-type": b"direct"}, RABBIT, NOW, ScheduleLimits()) is None


@pytest.mark.parametrize("value", [b"0", b"-1", b"-5000", b"4294967296", b"999999999999999999", b"0.9"])
def test_outside_of_the_range_there_is_no_delay(value):
    assert read(value) is None


@pytest.mark.parametrize(
    ("value", "delay"), [(b"1", 1), (b"4294967295", 4_294_967_295), (b"1500.9", 1_500), (b"+7", 7)]
)
def test_the_edges_of_the_range(value, delay):
    assert read(value).due_ms == NOW + delay


@pytest.mark.parametrize("value", [b"soon", b"1e3", b"5s", b"0x10", b"nan", b"\xd9\xa3", b"1" * 19])
def test_what_is_no_number_is_rejected(value):
    rejection = read(value)
    assert not isinstance(rejection, DelayCommand)
    assert "property x-delay has the value" in rejection.text
    assert "allowed: a number of milliseconds" in rejection.text
