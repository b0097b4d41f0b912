"""Five-field cron expressions in a time zone: which moments they mean. Built on cronsim.

Fields: minute hour day month weekday, as Debian's cron reads them: `*`, lists `1,2`, ranges `1-5`, steps
`*/15`, names JAN and MON in any case, 0 and 7 both Sunday, and `L` (last day of the month), `LW`, `5L`,
`MON#2`. When day and weekday are both restricted (neither starts with `*`), either of them is enough.

Daylight saving, also as in Debian's cron. Expressions whose minute **and** hour do not start with `*` name
times on the wall clock; such a time
* that does not exist (the clock was put forward over it) is taken at the first minute that does exist;
  several times in one gap are that one moment, once;
* that exists twice (the clock was put back) is taken the first time only.
All other expressions go by elapsed time: in a gap there is nothing to fire, and an hour that comes twice
counts twice (`*/30 * * * *` is every half hour of real time, `0 * * * *` every hour).

The search is bounded: an expression with no time within ten years is refused as impossible (30 February).
"""

from __future__ import annotations

from copy import copy
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

EXPRESSION_CHARACTERS_MAX = 128
ZONE_CHARACTERS_MAX = 64
HORIZON_YEARS = 10
NONE_CACHED_MS = 86_400_000  # how long the answer that a cron has no time is cached
NEVER_MS = -(1 << 62)
_DAY_MINUTES = 1_440
_MINUTE_MS = 60_000
_ALLOWED = (
    "allowed: five fields, minute hour day month weekday, as in '0 9 * * MON-FRI';"
    " * , - / # L and names of months and days"
)


class CronError(ValueError):
    """A cron expression or a zone is unusable; the text says what is wrong and what is allowed."""


class _Walk(CronSim):
    """cronsim's iterator with a horizon, corrected for unusual clock changes.

    Clocks may change by half an hour (Lord Howe), at a quarter to the hour (Chatham) or at midnight (Cairo).
    The iterator steps to the next hour or minute on the clock instead of by 60 minutes, never back, and
    starts a day with its first existing minute.
    """

    def advance(self) -> None:
        last = self.dt.year + HORIZON_YEARS
        while True:
            self.advance_month()
            if self.dt.year > last:
                raise StopIteration
            if not (
                self.advance_day() or self.advance_hour() or self.advance_minute() or self.advance_second()
            ):
                return

    def advance_month(self) -> None:
        before = self.dt
        super().advance_month()
        self._leave_clock_gap(before)

    def advance_day(self) -> bool:
        before = self.dt
        super().advance_day()
        self._leave_clock_gap(before)
        return self.dt is not before

    def _leave_clock_gap(self, before: datetime) -> None:
        """Move a time that a clock change skips at midnight to the first moment after the change."""
        if self.dt is not before and self.dt.tzinfo is not None:
            self.dt = self.dt.astimezone(UTC).astimezone(self.dt.tzinfo)

    def advance_hour(self) -> bool:
        if self.dt.hour in self.hours:
            return False
        self.dt = self.dt.replace(second=0)
        while self.dt.hour not in self.hours:
            self._next_hour()
            if self.dt.hour == 0:
                break  # another day: month and day are looked at again
        return True

    def _next_hour(self) -> None:
        start = self.dt
        self.tick(seconds=3_600 - start.minute * 60)
        if self.dt.utcoffset() != start.utcoffset():  # the clock changed on the way
            self.dt = start
            while self.dt.hour == start.hour:
                self.tick(seconds=60)

    def advance_minute(self) -> bool:
        if self.dt.minute in self.minutes:
            return False
        self.dt = start = self.dt.replace(second=0)
        if len(self.minutes) == 1:
            (target,) = self.minutes
            self.tick(seconds=(target - start.minute) % 60 * 60)
            if self.dt.minute == target:
                return True
            self.dt = start  # the clock changed on the way
        while self.dt.minute not in self.minutes:
            self.tick(seconds=60)
            if self.dt.hour != start.hour:
                break
        return True


class Cron:
    """A cron expression in a time zone. Objects from `Cron.from_expression` are cached."""

    __slots__ = ("_cached_answer", "_walk", "expression", "gap_ms_min", "zone")

    def __init__(self, expression: str, zone: str = "UTC") -> None:
        """Parse the expression. Raises CronError. `find_cron_error` checks whether it ever comes true."""
        self.expression = expression
        self._cached_answer = (0, 0, 0)
        self.zone = _load_zone(zone)
        fields = expression.split()
        if len(expression) > EXPRESSION_CHARACTERS_MAX:
            raise CronError(
                f"cron has {len(expression)} characters; allowed: at most {EXPRESSION_CHARACTERS_MAX}"
            )
        if len(fields) != 5:
            raise CronError(f"cron {expression!r} has {len(fields)} fields; {_ALLOWED}")
        try:
            self._walk = _Walk(expression, datetime(2000, 1, 1, tzinfo=self.zone))
        except (CronSimError, ValueError) as error:
            raise CronError(f"cron {expression!r} cannot be used: {str(error).lower()}; {_ALLOWED}") from None
        self.gap_ms_min = _gap_minutes(self._walk) * _MINUTE_MS
        """The shortest distance of two of its times, but for the days on which clocks change."""

    @staticmethod
    def from_expression(expression: str, zone: str = "UTC") -> Cron:
        """Return a parsed expression from a bounded cache. Raises CronError."""
        return _cached_cron(expression, zone)

    def next_ms(self, after_ms: int) -> int | None:
        """Return the first time after `after_ms` (epoch milliseconds), or None if there is none within ten
        years.

        A search may take milliseconds, so the answer None is cached for a day.
        """
        first, end, answer_ms = self._cached_answer
        if not first <= after_ms < end:
            time_ms = self._search_next(after_ms)
            end, answer_ms = (after_ms + NONE_CACHED_MS, NEVER_MS) if time_ms is None else (time_ms, time_ms)
            self._cached_answer = (after_ms, end, answer_ms)
        return None if answer_ms == NEVER_MS else answer_ms

    def _search_next(self, after_ms: int) -> int | None:
        try:
            walk = self._start(after_ms)
            for _ in range(_DAY_MINUTES):  # an hour that comes twice: pass over what was before
                moment = next(walk)
                time_ms = _epoch_ms(moment)
                if time_ms > after_ms:
                    return time_ms
        except (StopIteration, OverflowError, ValueError):
            return None
        return None

    def back_ms(self, from_ms: int, times: int) -> int | None:
        """Return the `times`-th time of the cron at or before `from_ms`, counted backwards, or an earlier
        moment near it; None if there is none."""
        try:
            walk = _Walk(self.expression, _moment_at(from_ms + 1_000, self.zone), reverse=True)
            moment = walk.dt
            for _ in range(times):
                moment = next(walk)
        except (StopIteration, OverflowError, ValueError):
            return None
        return _epoch_ms(moment)

    def _start(self, after_ms: int) -> CronSim:
        walk = copy(self._walk)
        moment = _moment_at(after_ms, self.zone)
        walk.dt = moment.replace(tzinfo=None, fold=0) if walk.fixup_tz else moment
        return walk


def find_cron_error(expression: str, zone: str, now_ms: int) -> str | None:
    """Return why this expression cannot be used in this zone at present or later; None if it can."""
    try:
        cron = Cron.from_expression(expression, zone)
    except CronError as error:
        return str(error)
    first = cron.next_ms(now_ms)
    if first is None:
        return f"cron {expression!r} has no time within {HORIZON_YEARS} years; {_ALLOWED}"
    if cron.next_ms(first) is None:
        return f"cron {expression!r} has no second time within {HORIZON_YEARS} years of its first; {_ALLOWED}"
    return None


@lru_cache(maxsize=4_096)
def _cached_cron(expression: str, zone: str) -> Cron:
    return Cron(expression, zone)


def _load_zone(name: str) -> ZoneInfo:
    try:
        if len(name) > ZONE_CHARACTERS_MAX:
            raise ValueError
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError; a folder is an OSError
        raise CronError(
            f"time zone {name[:ZONE_CHARACTERS_MAX]!r} is not known; allowed: IANA names, as in Europe/Berlin"
        ) from None


def _moment_at(ms: int, zone: ZoneInfo) -> datetime:
    """Convert epoch milliseconds to a datetime, rounded down to a second, without the error of a float."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=ms // 1_000)).astimezone(zone)


def _epoch_ms(moment: datetime) -> int:
    since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000


def _gap_minutes(walk: CronSim) -> int:
    times = sorted(hour * 60 + minute for hour in walk.hours for minute in walk.minutes)
    over_night = _DAY_MINUTES - times[-1] + times[0]
    return min([later - earlier for earlier, later in pairwise(times)] + [over_night])
