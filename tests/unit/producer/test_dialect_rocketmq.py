"""RocketMQ 5's timer properties, by that system's own documentation.

"Delay Message" (rocketmq.apache.org/docs/featureBehavior/02delaymessage) sets a delivery timestamp in
milliseconds since the epoch, lets a moment that has passed be delivered at once, and rejects one beyond the
longest delay. The property names, and which of several holds, are those of MessageConst and of
HookUtils.transformTimerMessage in apache/rocketmq. Levels ("Delayed Message Sending",
rocketmq.apache.org/docs/4.x/producer/04message3) are tests/unit/producer/test_producer_levels.py.
"""

import pytest

from ddmq_common.delays.command import DelayCommand
from ddmq_common.delays.schedules import ScheduleLimits
from proxy_producer.core.dialects import read_command, select_dialects

NOW = 1_795_289_273_456
ROCKETMQ = select_dialects(["rocketmq"])


def read(**properties):
    properties = {f"TIMER_{name}".encode(): str(value).encode() for name, value in properties.items()}
    return read_command(properties, ROCKETMQ, NOW, ScheduleLimits(delay_ms_max=3 * 86_400_000))


def test_the_three_ways():
    assert read(DELAY_SEC=10).due_ms == NOW + 10_000
    assert read(DELAY_MS=10).due_ms == NOW + 10
    assert read(DELIVER_MS=NOW + 600_000).due_ms == NOW + 600_000
    assert read(DELIVER_MS=NOW).due_ms == NOW, "now is the end of a millisecond that is not over yet"


def test_which_of_several_holds():
    assert read(DELAY_SEC=10, DELAY_MS=20, DELIVER_MS=NOW + 30).due_ms == NOW + 10_000
    assert read(DELAY_MS=20, DELIVER_MS=NOW + 30).due_ms == NOW + 20


@pytest.mark.parametrize(
    "properties", [{"DELIVER_MS": NOW - 1}, {"DELIVER_MS": 1}, {"DELAY_SEC": 0}, {"DELAY_MS": -1}]
)
def test_what_has_passed_goes_at_once(properties):
    assert read(**properties) is None


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"DELAY_SEC": 3 * 86_400 + 1}, "allowed: at most 3d"),
        ({"DELIVER_MS": NOW + 259_200_001}, "allowed: at most 3d"),
        ({"DELAY_SEC": "ten"}, "TIMER_DELAY_SEC has the value 'ten'"),
        ({"DELAY_SEC": "10", "DELIVER_MS": "later"}, "TIMER_DELIVER_MS has the value 'later'"),
        ({"DELAY_MS": "1.5"}, "a whole number"),
    ],
)
def test_what_is_rejected(properties, words):
    rejection = read(**properties)
    assert not isinstance(rejection, DelayCommand)
    assert words in rejection.text
