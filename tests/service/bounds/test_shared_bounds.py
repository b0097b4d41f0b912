"""A bound on what all processes share holds for them together, however many of them fill it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy_consumer.groups import ordering
from tests.service.bounds.shared_bounds import BOUND, BUSY, SHARED_BOUNDS, SharedBound
from tools import bounds


@pytest.fixture(params=SHARED_BOUNDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[SharedBound]:
    monkeypatch.setattr(ordering, "PARKED_MAX", BOUND)
    return SHARED_BOUNDS[request.param]


ELSEWHERE = {
    "proxy_consumer.push_files_bytes_max": "test_bounds_of_folders.py",
    "ddmq.samples.bytes_max": "test_bounds_of_folders.py",
    "delay_service.pending_count_max": "test_bounds_of_delays.py",
    "delay_service.pending_bytes_max": "test_bounds_of_delays.py",
    "proxy_producer.transactions.open_max": "../transactions/test_transaction_limits.py",
    "processes": "../../unit/sessions/test_session_server.py",
    "operations": "../../unit/ddmq/test_operation_requests.py",
    "quotas": "../../scenarios/test_quotas_of_work.py",
}
COUNTED_BY_THE_WRITER = {  # for whoever asks: one process has the log, the others ask it
    "producers", "open", "idempotency", "requests", "file_log.pending_bytes_max", "waiting",
    "file_log.retention.log_bytes_max", "file_log.retention.clean_free_bytes",
    "file_log.retention.clean_free_percent", "file_log.retention.refuse_free_bytes",
    "file_log.retention.refuse_free_percent", "file_log.retention.reserve_free_bytes",
    "file_log.retention.reserve_free_percent",
}  # fmt: skip


def test_every_bound_of_all_processes_has_its_test() -> None:
    shared = {
        bound.key.split(" ")[0] for bound in bounds.bounds() if bound.scope is bounds.Scope.INSTALLATION
    }
    raced = {name.replace("PARKED_MAX", "parked") for name in SHARED_BOUNDS}
    assert shared == raced | ELSEWHERE.keys() | COUNTED_BY_THE_WRITER
    for file in ELSEWHERE.values():
        assert (Path(__file__).parent / file).is_file()


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_racing_processes_stay_within_the_bound(
    kind: type[SharedBound], processes: int, tmp_path: Path
) -> None:
    bound = kind(tmp_path, processes)
    outcomes = bound.race()
    accepted = [outcome for outcome in outcomes if outcome.code == 0]
    rejected = [outcome for outcome in outcomes if outcome.code != 0]
    assert 0 < bound.count() <= BOUND
    assert bound.count() == len(accepted)
    if kind.exact:
        assert bound.count() == BOUND
    assert rejected
    for outcome in rejected:
        assert outcome.code == BUSY
        assert kind.text in outcome.text


@pytest.mark.parametrize("processes", [2, 3])
def test_what_is_released_can_be_claimed_by_every_process(
    kind: type[SharedBound], processes: int, tmp_path: Path
) -> None:
    bound = kind(tmp_path, processes)
    bound.race()
    for process in range(processes):
        rejected = bound.one_more(process)
        assert (rejected.code, kind.text in rejected.text) == (BUSY, True), rejected
    for process in range(processes):
        bound.free()
        assert bound.one_more(process).code == 0
