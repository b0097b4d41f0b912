"""ActiveMQ's scheduler properties, by that system's own documentation.

The page "Delay and Schedule Message Delivery" of ActiveMQ Classic
(activemq.apache.org/components/classic/documentation/delay-and-schedule-message-delivery) names the four
properties with their types, gives the three examples that are played here, and says that a message which
carries scheduledJobId is sent at once. What the page leaves open (a period without a delay, a delay of 0, a
repeat without end) is as its broker does it: JobSchedulerImpl.doSchedule and SchedulerBroker.doSchedule.
"""

from datetime import UTC, datetime

import pytest

from ddmq_common.delays.command import DelayCommand
from ddmq_common.delays.schedules import ScheduleLimits
from delay_service.core.occurrences import next_after
from proxy_producer.core.dialects import read_command, select_dialects

NOW = 1_795_289_273_456
AMQ = select_dialects(["amq"])


def read(now=NOW, **properties):
    properties = {f"AMQ_SCHEDULED_{name}".encode(): str(value).encode() for name, value in properties.items()}
    return read_command(properties, AMQ, now, ScheduleLimits())


def deliveries(command, count):
    """Milliseconds after the send, of those in time."""
    due_after_ms, occurrence = [command.due_ms - NOW], 0
    while len(due_after_ms) < count and (following := next_after(command, occurrence, 0)):
        occurrence = following.occurrence
        due_after_ms.append(following.due_ms - NOW)
    return due_after_ms


def test_a_delay_of_60_seconds():
    assert deliveries(read(DELAY=60_000), 9) == [60_000]


def test_a_delay_and_ten_deliveries_ten_seconds_apart():
    assert deliveries(read(DELAY=30_000, PERIOD=10_000, REPEAT=9), 99) == [
        30_000 + 10_000 * n for n in range(10)
    ]


def test_every_hour():
    due_after_ms = deliveries(read(CRON="0 * * * *"), 3)
    assert [datetime.fromtimestamp((NOW + ms) // 1_000, UTC).minute for ms in due_after_ms] == [0, 0, 0]
    assert due_after_ms[1] - due_after_ms[0] == 3_600_000


def test_ten_times_every_hour_one_second_apart():
    hour = read(CRON="0 * * * *").due_ms - NOW
    due_after_ms = deliveries(read(CRON="0 * * * *", DELAY=1_000, PERIOD=1_000, REPEAT=9), 12)
    assert due_after_ms == [hour + 1_000 * n for n in range(1, 11)] + [hour + 3_601_000, hour + 3_602_000]


def test_a_message_that_was_scheduled_before_goes_at_once():
    properties = {b"scheduledJobId": b"ID:1", b"AMQ_SCHEDULED_DELAY": b"60000"}
    assert read_command(properties, AMQ, NOW, ScheduleLimits()) is None


def test_a_period_alone_is_the_first_wait():
    assert deliveries(read(PERIOD=5_000), 9) == [5_000]
    assert deliveries(read(PERIOD=5_000, REPEAT=2), 9) == [5_000, 10_000, 15_000]
    assert deliveries(read(DELAY=0, PERIOD=5_000, REPEAT=1), 9) == [5_000, 10_000]


def test_without_a_wait_there_is_nothing_to_schedule():
    assert read(DELAY=0) is None
    assert read(DELAY=-5) is None
    assert read(REPEAT=3) is None


def test_a_repeat_of_minus_one_has_no_end():
    command = read(DELAY=1_000, PERIOD=1_000, REPEAT=-1)
    assert len(deliveries(command, 500)) == 500


def test_a_zone_of_ours_beside_the_cron():
    command = read(CRON="0 9 * * *", ZONE="Asia/Shanghai")
    assert datetime.fromtimestamp(command.due_ms // 1_000, UTC).hour == 1
    assert "without a cron" in read(DELAY=5, ZONE="Asia/Shanghai").text


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"DELAY": "soon"}, "property AMQ_SCHEDULED_DELAY has the value 'soon'; allowed: a whole number"),
        ({"DELAY": "1.5"}, "'1.5'"),
        ({"PERIOD": "-10", "REPEAT": "1"}, "allowed: 0 to"),
        ({"DELAY": "5", "REPEAT": "x"}, "AMQ_SCHEDULED_REPEAT"),
        ({"DELAY": "5", "REPEAT": "-2", "PERIOD": "1000"}, "repeat is -2"),
        ({"DELAY": "5", "REPEAT": "5"}, "the period is 0s"),
        ({"DELAY": "5", "PERIOD": "1000", "REPEAT": "2000000"}, "repeat is 2000000"),
        ({"CRON": "every hour"}, "has 2 fields"),
        ({"CRON": "0 * * * *", "ZONE": "Moon"}, "time zone 'Moon'"),
    ],
)
def test_what_is_rejected(properties, words):
    rejection = read(**properties)
    assert not isinstance(rejection, DelayCommand)
    assert words in rejection.text
