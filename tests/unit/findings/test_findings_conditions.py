"""Each rule of the table, from metrics to finding: thresholds, durations, and what is no finding."""

from __future__ import annotations

import pytest

from ddmq.server.findings.core.evaluator import ActiveFinding, ClockReading, Evaluator
from ddmq.server.findings.core.measures import fit_slope
from ddmq.server.findings.core.readings import read_columns
from ddmq_common.findings.conditions import OnlyPrometheus
from ddmq_common.findings.rule import CRITICAL
from ddmq_common.findings.table import RULES_BY_NAME
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry

TICK_S = 15
MINUTE_MS = 60_000


class WatchedProcess:
    """The metrics of a process, and an evaluator that reads them every TICK_S."""

    def __init__(self) -> None:
        self.metrics, self.judge, self.now = Registry(), Evaluator(), 1_000.0
        self.metrics.cell(catalogue.LEVELS_HELD).value = 18

    def run(self, seconds: float) -> list[ActiveFinding]:
        """Let time pass with nothing happening."""
        for _ in range(max(1, int(seconds / TICK_S))):
            self.now += TICK_S
            self.evaluate()
        return self.findings()

    def evaluate(self) -> None:
        for name, state in self.judge.states.items():
            moment = ClockReading(self.now, int(self.now * 1000))
            self.judge.update(name, moment, read_columns(state.rule.condition, self.metrics))

    def findings(self) -> list[ActiveFinding]:
        return self.judge.list_findings(ClockReading(self.now, int(self.now * 1000)))[0]

    def names(self) -> list[str]:
        return [finding.rule.name for finding in self.findings()]


@pytest.fixture
def process() -> WatchedProcess:
    return WatchedProcess()


def test_a_process_without_trouble_has_no_finding(process: WatchedProcess) -> None:
    assert process.run(3600) == []


def test_a_key_blocked_for_236_ms_is_no_finding(process: WatchedProcess) -> None:
    process.metrics.cell(catalogue.BLOCKED_KEY_AGE, "billing", "orders").value = 236
    assert process.run(3600) == []


def test_a_key_is_a_finding_once_it_has_been_blocked_for_the_threshold_and_the_duration(
    process: WatchedProcess,
) -> None:
    age = process.metrics.cell(catalogue.BLOCKED_KEY_AGE, "billing", "orders")
    while age.value <= 10 * MINUTE_MS:
        age.value += TICK_S * 1000
        assert process.run(TICK_S) == []
    since = process.now
    assert process.run(45) == []
    (finding,) = process.run(15)
    assert finding.rule.name == "DdmqKeyBlocked"
    assert finding.labels == {"group": "billing", "topic": "orders"}
    assert finding.since_ms == int(since * 1000)
    age.value = 0
    assert process.run(TICK_S) == []


def test_dead_letters_are_found_from_the_first_until_the_window_has_passed(
    process: WatchedProcess,
) -> None:
    letters = process.metrics.cell(catalogue.DEAD_LETTERS, "mailer", "mail", "failed")
    letters.value = 5
    (finding,) = process.run(TICK_S)
    assert finding.rule.build_text(finding.labels, finding.value) == (
        "5 messages of mail went to the dead letters of mailer"
    )
    assert [each.value for each in process.run(10 * 60)] == [5]
    assert process.run(10 * 60) == []
    letters.value = 6
    assert [each.value for each in process.run(TICK_S)] == [1]


def test_a_subscription_without_consumers_is_found_after_its_window(
    process: WatchedProcess,
) -> None:
    process.metrics.cell(catalogue.LAG, "warehouse", "orders").value = 5_001
    process.metrics.cell(catalogue.DELIVERED, "warehouse", "orders").value = 17
    assert process.run(10 * 60) == []
    (finding,) = process.run(14 * 60)
    assert finding.rule.name == "DdmqNobodyConsumes"
    assert finding.value == 5_001
    process.metrics.cell(catalogue.FETCHED, "warehouse", "orders").value = 1
    assert process.run(TICK_S) == []


def test_a_paused_group_is_found_after_a_day_and_nothing_else_of_it(process: WatchedProcess) -> None:
    subscription = ("billing", "orders")
    paused = process.metrics.cell(catalogue.PAUSED, *subscription)
    paused.value = 1
    for metric in (catalogue.LAG, catalogue.LAG_AGE, catalogue.BLOCKED_KEY_AGE, catalogue.RETRY_WAITING_AGE):
        process.metrics.cell(metric, *subscription).value = 24 * 60 * MINUTE_MS
    assert process.run(24 * 3600) == []
    (finding,) = process.run(TICK_S)
    assert finding.rule.name == "DdmqGroupPaused"
    assert finding.rule.build_text(finding.labels, finding.value) == (
        "billing has been paused on orders for more than a day"
    )
    paused.value = 0
    names = {"DdmqLagOld", "DdmqNobodyConsumes", "DdmqKeyBlocked", "DdmqRetriesWait"}
    assert process.run(60) == []
    process.run(20 * 60)
    assert set(process.names()) == names


def test_held_delays_are_found_after_a_day(process: WatchedProcess) -> None:
    process.metrics.cell(catalogue.DELAY_HELD, "reminders").value = 1
    process.metrics.cell(catalogue.DELAY_HELD, "orders").value = 0
    assert process.run(24 * 3600) == []
    (finding,) = process.run(TICK_S)
    assert (finding.rule.name, finding.labels) == ("DdmqDelaysHeld", {"topic": "reminders"})
    assert finding.rule.build_command(finding.labels) == "ddmq delay count reminders"


def test_failed_sends_are_a_share_of_the_sends_to_a_topic(process: WatchedProcess) -> None:
    ok = process.metrics.cell(catalogue.SENDS, "orders", "0")
    failed = process.metrics.cell(catalogue.SENDS, "orders", "13")
    for share, names in ((0.009, []), (0.011, ["DdmqSendsFail"])):
        for _ in range(60):
            ok.value += 1000 * (1 - share)
            failed.value += 1000 * share
            process.run(TICK_S)
        assert process.names() == names


def test_slow_sends_are_those_in_the_buckets_above_the_threshold(process: WatchedProcess) -> None:
    latency = process.metrics.histogram(catalogue.SEND_LATENCY, "orders")
    for slow, names in ((0, []), (2, ["DdmqSendsSlow"])):
        for _ in range(60):
            for n in range(100):
                latency.observe(400_000 if n < slow else 2_000)
            process.run(TICK_S)
        assert process.names() == names


def test_a_group_whose_deliveries_all_fail_is_found(
    process: WatchedProcess,
) -> None:
    failed = process.metrics.cell(catalogue.FAILED, "g", "t")
    for _ in range(30):
        failed.value += 1
        process.run(TICK_S)
    (finding,) = process.findings()
    assert (
        finding.rule.build_text(finding.labels, finding.value) == "g fails 100 % of what it receives from t"
    )


def test_a_disk_that_fills_is_found_by_its_trend(process: WatchedProcess) -> None:
    free = process.metrics.cell(catalogue.LOG_DISK_FREE)
    free.value = 60 << 30
    assert process.run(3600) == []
    for _ in range(220):
        free.value -= 120 << 20  # 8 MiB a second: 58 GiB last for two hours
        process.run(TICK_S)
    (finding,) = process.findings()
    assert finding.rule.name == "DdmqDiskFillsUp"


def test_a_full_disk_says_what_is_rejected(process: WatchedProcess) -> None:
    process.metrics.cell(catalogue.LOG_DISK).value = 1
    (finding,) = process.run(90)
    labels = {"instance": "mq-1:9813"}
    assert finding.rule.build_text(labels, finding.value) == (
        "The log at mq-1:9813 rejects client sends: the disk is nearly full"
    )
    assert finding.rule.severity == CRITICAL


def test_late_delays_and_no_scheduler_are_found(process: WatchedProcess) -> None:
    lateness = process.metrics.histogram(catalogue.DELAY_LATENESS, "mail")
    process.metrics.cell(catalogue.LEVELS_HELD).value = 0
    for _ in range(40):
        lateness.observe(3_000_000)
        process.run(TICK_S)
    assert process.names() == ["DdmqNoLevelScheduler", "DdmqDelayLate"]


@pytest.mark.parametrize("name", ["DdmqProcessDown", "DdmqWriterLost"])
def test_what_only_prometheus_can_judge_has_its_reason(name: str) -> None:
    condition = RULES_BY_NAME[name].condition
    assert isinstance(condition, OnlyPrometheus)
    assert condition.reason
    assert name not in Evaluator().states


def test_a_slope_needs_two_points_in_time() -> None:
    assert fit_slope([]) is None
    assert fit_slope([(1.0, 5.0)]) is None
    assert fit_slope([(1.0, 5.0), (1.0, 9.0)]) is None
    assert fit_slope([(1.0, 5.0), (2.0, 7.0), (3.0, 9.0)]) == 2.0
