"""Occurrences against naive models: every kind is walked through one by one, minute by minute.

The models know nothing of arithmetic: a loop adds its interval until it is there, a cron is looked for in
every minute of some days around changes of the clock, a series of a schedule is written out whole.
"""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from ddmq_common.delays.command import ADD, EXPONENTIAL, LOOP, SCHEDULE, DelayCommand, Schedule
from ddmq_common.delays.cron import Cron
from delay_service.core.occurrences import delivered_before, due_ms, next_after, occurrence_id, to_fire
from tests.examples import examples

T0 = 1_795_289_273
HOUR_MS, MINUTE_MS = 3_600_000, 60_000
UUID = "a4207970-e5e1-11f1-a4e0-02fc00000001"

loops = st.builds(
    lambda kind, interval, times, lasts, ms: DelayCommand(
        ADD, UUID, "t", kind, T0 * 1_000 + ms, T0, T0 + lasts, interval, times
    ),
    st.sampled_from([LOOP, EXPONENTIAL]),
    st.integers(2, 200),
    st.integers(1, 60),
    st.integers(0, 600_000),
    st.integers(0, 999),
)


def walked(order):
    """Every due time of a loop, ms, by the rule's own words."""
    seconds, step = [], order.timestamp_s
    for k in range(order.times):
        if k:
            step += order.interval_s if order.kind == LOOP else min(order.interval_s**k, 86_400)
        if k and step > order.expire_s:
            break
        seconds.append(step)
    return [order.due_ms + (second - order.timestamp_s) * 1_000 for second in seconds]


@given(loops, st.integers(-1_000, 700_000_000), st.integers(1, 70))
def test_a_loop_fires_missed_deliveries_up_to_the_cap(order, late_ms, cap):
    dues, now, k = walked(order), order.due_ms + late_ms, 0
    fired = [0]
    while (occurrence_due := next_after(order, k, now, cap)) is not None:
        k = occurrence_due.occurrence
        assert occurrence_due.due_ms == dues[k] == due_ms(order, k)
        fired.append(k)
    missed = [k for k in range(1, len(dues)) if dues[k] <= now]
    assert fired == [0, *missed[-cap:], *[k for k in range(1, len(dues)) if dues[k] > now]]


@given(loops, st.integers(0, 59))
def test_an_occurrence_has_its_own_second_and_number(order, k):
    dues = walked(order)
    k = min(k, len(dues) - 1)
    groups = occurrence_id(order, k).split("-", 7)
    assert groups[0] == str(dues[k] // 1_000)
    assert groups[4] == str(k)
    assert groups[1:4] == [str(order.kind), str(order.expire_s), str(order.times)]
    assert groups[5:] == [str(order.interval_s), "0", UUID]


# --- crons


def fields_match(when, minutes, hours, weekdays):
    return when.minute in minutes and when.hour in hours and when.weekday() in weekdays


def wall_clock(zone, day, minutes, hours, weekdays):
    """The rule for times on the wall clock: each once, and what does not exist at the end of its gap."""
    moments, at = set(), day.replace(hour=0, minute=0)
    for _ in range(5 * 1_440):
        if fields_match(at, minutes, hours, weekdays):
            local = at
            while local.replace(tzinfo=zone).astimezone(UTC).astimezone(zone).replace(tzinfo=None) != local:
                local += timedelta(minutes=1)
            moments.add(local.replace(tzinfo=zone).astimezone(UTC))
        at += timedelta(minutes=1)
    return sorted(moments)


def elapsed(zone, start, end, minutes, hours, weekdays):
    """The rule for all others: every minute that there really is."""
    moments, at = [], start
    while at < end:
        if fields_match(at.astimezone(zone), minutes, hours, weekdays):
            moments.append(at)
        at += timedelta(minutes=1)
    return moments


CHANGES = [
    ("Europe/Berlin", 2026, 3, 28), ("Europe/Berlin", 2026, 10, 24),
    ("America/New_York", 2026, 3, 7), ("America/New_York", 2026, 10, 31),
    ("Australia/Lord_Howe", 2026, 4, 4), ("Australia/Lord_Howe", 2026, 10, 3),
    ("Asia/Shanghai", 2026, 10, 24), ("Africa/Cairo", 2026, 4, 23), ("Asia/Kathmandu", 2026, 1, 1),
]  # fmt: skip
some_minutes = st.sets(st.integers(0, 59), min_size=1, max_size=3)
some_hours = st.sets(st.integers(0, 4) | st.integers(0, 23), min_size=1, max_size=3)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(CHANGES),
    some_minutes,
    some_hours,
    st.booleans(),
    st.booleans(),
    st.sampled_from(["*", "1-5", "6,0"]),
    st.integers(0, 3 * 24 * 60),
)
def test_a_cron_around_a_change_of_the_clock(change, minutes, hours, any_minute, any_hour, days, start):
    name, *date = change
    zone, day = ZoneInfo(name), datetime(*date)
    weekdays = {"*": set(range(7)), "1-5": set(range(5)), "6,0": {5, 6}}[days]
    hours = set(range(24)) if any_hour else hours
    minutes = set(range(0, 60, 20)) if any_minute else minutes
    expression = " ".join(
        (
            "*/20" if any_minute else ",".join(map(str, sorted(minutes))),
            "*" if any_hour else ",".join(map(str, sorted(hours))),
            "* *", days,
        )
    )  # fmt: skip
    begin = day.replace(tzinfo=zone).astimezone(UTC)
    if any_minute or any_hour:
        expected = elapsed(zone, begin, begin + timedelta(days=4), minutes, hours, weekdays)
    else:
        expected = wall_clock(zone, day, minutes, hours, weekdays)
    cron, after = Cron(expression, name), begin + timedelta(minutes=start)
    for at in [at for at in expected if after < at < begin + timedelta(days=4)][:8]:
        next_fire_ms = cron.next_ms(int(after.timestamp() * 1_000))
        assert datetime.fromtimestamp(next_fire_ms / 1_000, UTC) == at, (expression, name, after)
        after = at


# --- schedules

crons = st.sampled_from(["", "* * * * *", "*/15 * * * *", "0 * * * *", "5,50 */6 * * *", "0 0 * * *"])
schedules = st.builds(
    Schedule,
    delay_ms=st.integers(0, 3) | st.integers(0, 200_000),
    period_ms=st.integers(1_000, 90_000),
    repeat=st.integers(0, 5),
    cron=crons,
    occurrences_max=st.just(0) | st.integers(1, 12),
    catch_up=st.sampled_from(["fire_once", "all", "skip"]),
)


def written_out(schedule, first_due, after, more):
    """Every delivery, ms; of a cron until `more` come after `after`."""
    if not schedule.cron:
        return [first_due + j * schedule.period_ms for j in range(schedule.repeat + 1)]
    cron, at, dues, series = Cron(schedule.cron), first_due - schedule.delay_ms, set(), 0
    while series <= more:
        dues |= {at + schedule.delay_ms + j * schedule.period_ms for j in range(schedule.repeat + 1)}
        series += at + schedule.delay_ms > after
        at = cron.next_ms(at)
    return sorted(due for due in dues if due < at + schedule.delay_ms)


def an_order(schedule):
    start = T0 * 1_000
    if schedule.cron:
        start = Cron(schedule.cron).next_ms(start)
    return DelayCommand(ADD, UUID, "t", SCHEDULE, start + schedule.delay_ms, T0, schedule=schedule)


@settings(deadline=None)
@given(schedules)
def test_a_schedule_in_time_makes_every_delivery(schedule):
    order, occurrence, dues = an_order(schedule), 0, []
    expected = written_out(schedule, order.due_ms, order.due_ms, 40)[: schedule.occurrences_max or None][:40]
    while True:
        due = due_ms(order, occurrence)
        dues.append(due)
        assert delivered_before(order, occurrence) == len(dues) - 1
        assert to_fire(order, occurrence, due + 20).occurrence == occurrence
        following = next_after(order, occurrence, due)
        if following is None or len(dues) == 40:
            break
        assert following.occurrence > occurrence
        occurrence = following.occurrence
    assert dues == expected


@settings(deadline=None)
@given(schedules, st.integers(0, 8 * HOUR_MS), st.integers(1, 20))
def test_a_late_schedule_fires_up_to_its_cap(schedule, late_ms, cap):
    """Nothing could fire from the first due time until `now`; then all that follows is in time."""
    order = an_order(schedule)
    now = order.due_ms + late_ms
    plan = written_out(schedule, order.due_ms, now, 5)
    missed, coming = [at for at in plan if at <= now], [at for at in plan if at > now][:5]
    fired, occurrence = [], 0
    while len([at for at in fired if at > now]) < 5:
        at = max(now, due_ms(order, occurrence))
        following = to_fire(order, occurrence, at)
        if following is not None and following.occurrence == occurrence:
            fired.append(due_ms(order, occurrence))
            following = next_after(order, occurrence, at, cap)
        if following is None:
            break
        assert following.occurrence > occurrence
        occurrence = following.occurrence
    limit = schedule.occurrences_max or 1_000_000
    late = [at for at in fired if at <= now]
    assert fired == sorted(set(fired))
    assert len(fired) <= limit
    assert [at for at in fired if at > now] == coming[: limit - len(late)]
    if schedule.catch_up == "fire_once":
        assert late == missed[:1]
    elif schedule.catch_up == "skip" and len(plan) > 1:
        assert late == [at for at in missed if now - at <= 5_000][:limit]
    elif schedule.catch_up == "all":
        assert late == [missed[0], *missed[1:][-cap:]][:limit]
