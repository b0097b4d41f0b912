"""An operation rests for longer while others need the processor."""

from __future__ import annotations

import pytest

from ddmq.server.admin.operations import slices
from ddmq.server.http.pace import SLICE_S, YIELD_S

FULL_S = SLICE_S * (1 / slices.SHARE_S - 1)


class Processor:
    """The time of a thread in which others use a share of each rest."""

    def __init__(self, others: float) -> None:
        self._others = others
        self.now, self.used = 100.0, 7.0
        self.rests: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.used

    def sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.now += seconds
        self.used += seconds * self._others


@pytest.mark.parametrize(("others", "expected_s"), [(1.0, FULL_S), (0.6, FULL_S), (0.3, YIELD_S)])
def test_others_get_most_of_the_time_if_they_need_it(
    others: float, expected_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = Processor(others)
    monkeypatch.setattr(slices, "time", processor)
    monkeypatch.setattr(slices.gevent, "sleep", processor.sleep)
    account = slices.SlicingAccount()
    account.rest_if_long(SLICE_S / 2)
    assert processor.rests == [], "the slice is not used up"
    account.charge(SLICE_S / 2)
    account.rest_if_long(SLICE_S / 2 + 1e-9)
    assert sum(processor.rests) == pytest.approx(expected_s, abs=slices.REST_S)
    account.rest_if_long(SLICE_S / 2)
    assert sum(processor.rests) == pytest.approx(expected_s, abs=slices.REST_S), "a new slice has begun"
