"""Dialects as a whole: who speaks them, what is rejected, what is delivered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq_client.idl.codes import DELAY_DIALECT_PROPERTIES, Code
from ddmq_common.delays.command import ADD, SCHEDULE, DelayCommand, Schedule
from ddmq_common.delays.schedules import ScheduleLimits
from ddmq_common.names import DELAY_DIALECTS
from proxy_producer.core.dialects import drop_dialects, read_command, select_dialects
from proxy_producer.core.rejections import SendRejection

NOW = 1_795_289_273_456
LIMITS = ScheduleLimits()
ALL = select_dialects(DELAY_DIALECTS)
NAMES = sorted(ALL.properties)


def test_an_order_of_a_dialect_keeps_the_message_as_it_is():
    command = read_command({b"x-delay": b"1500", b"mine": b"1"}, ALL, NOW, LIMITS)
    due = NOW + 1_500
    assert command == DelayCommand(
        ADD, "", kind=SCHEDULE, due_ms=due, timestamp_s=due // 1_000, schedule=Schedule(delay_ms=1_500)
    )


def test_what_no_topic_speaks_is_an_ordinary_property():
    properties = dict.fromkeys(NAMES, b"5000")
    nothing = select_dialects(())
    assert read_command(properties, nothing, NOW, LIMITS) is None
    assert drop_dialects(properties, nothing) == properties
    rabbit = select_dialects(["rabbit"])
    assert read_command({b"TIMER_DELAY_MS": b"x"}, rabbit, NOW, LIMITS) is None
    assert drop_dialects({b"TIMER_DELAY_MS": b"x", b"x-delay": b"0"}, rabbit) == {b"TIMER_DELAY_MS": b"x"}


def test_the_client_knows_every_name():
    assert {name.encode() for name in DELAY_DIALECT_PROPERTIES} == ALL.properties


def test_names_of_a_dialect_are_never_delivered():
    properties = {b"mine": b"1", b"scheduledJobId": b"7"} | dict.fromkeys(NAMES, b"1")
    assert drop_dialects(properties, ALL) == {b"mine": b"1", b"scheduledJobId": b"7"}


def test_two_dialects_are_rejected_by_name():
    rejection = read_command({b"x-delay": b"5", b"AMQ_SCHEDULED_DELAY": b"6"}, ALL, NOW, LIMITS)
    assert isinstance(rejection, SendRejection)
    assert (rejection.code, rejection.reason) == (Code.ILLEGAL_MESSAGE, "delay_dialects_mixed")
    assert "AMQ_SCHEDULED_DELAY x-delay" in rejection.text
    assert read_command(
        {b"x-delay": b"5", b"AMQ_SCHEDULED_DELAY": b"6"}, select_dialects(["amq"]), NOW, LIMITS
    )


def test_a_dialect_beside_a_level_is_rejected():
    rejection = read_command({b"x-delay": b"5", b"DELAY": b"3"}, ALL, NOW, LIMITS)
    assert rejection.code == Code.ILLEGAL_MESSAGE
    assert "x-delay DELAY=3" in rejection.text
    assert read_command({b"DELAY": b"3"}, ALL, NOW, LIMITS) is None
    assert isinstance(read_command({b"x-delay": b"5", b"DELAY": b"0"}, ALL, NOW, LIMITS), DelayCommand)


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({b"deliver-after": b"63d"}, "the delay is 63d; allowed: 0 to 62d"),
        ({b"deliver-at": b"1895289273"}, "from now; allowed: at most 62d"),
        ({b"TIMER_DELAY_SEC": b"5356801"}, "the due time is 62d1s from now"),
        ({b"AMQ_SCHEDULED_CRON": b"0 0 30 2 *"}, "day-of-month"),
        ({b"deliver-period": b"10ms", b"deliver-repeat": b"3"}, "the period is 10ms"),
        ({b"deliver-after": b"9" * 18}, "allowed: 0 to"),
    ],
)
def test_limits_hold_for_every_dialect(properties, words):
    rejection = read_command(properties, ALL, NOW, LIMITS)
    assert isinstance(rejection, SendRejection)
    assert rejection.code == Code.ILLEGAL_MESSAGE
    assert rejection.text.startswith("FAILED: ")
    assert words in rejection.text


def test_a_limit_of_years_is_a_limit_of_years():
    years = ScheduleLimits(delay_ms_max=10 * 366 * 86_400_000)
    assert isinstance(read_command({b"deliver-after": b"3650d"}, ALL, NOW, years), DelayCommand)


def test_an_unknown_dialect_is_named():
    with pytest.raises(ValueError, match=r"'redis' is not known; allowed: amq, rabbit, rocketmq, ddmq"):
        select_dialects(["rabbit", "redis"])


@given(st.dictionaries(st.sampled_from(NAMES), st.binary(min_size=1, max_size=40), min_size=1, max_size=3))
def test_no_value_raises(properties):
    for name in DELAY_DIALECTS:
        command = read_command(properties, select_dialects([name]), NOW, LIMITS)
        assert command is None or isinstance(command, DelayCommand | SendRejection)


@given(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.sampled_from(
            [b"0", b"-1", b"1000", b"99999999999999999", b"* * * * *", b"0 9 * * 1-5", b"UTC", b"1h", b"all"]
        ),
        min_size=1,
        max_size=5,
    )
)
def test_what_is_accepted_is_due_within_the_limits(properties):
    for name in DELAY_DIALECTS:
        command = read_command(properties, select_dialects([name]), NOW, LIMITS)
        if isinstance(command, DelayCommand):
            assert command.schedule is not None
            assert command.schedule.cron or command.due_ms <= NOW + LIMITS.delay_ms_max
            assert command.schedule.repeat or command.due_ms > NOW
