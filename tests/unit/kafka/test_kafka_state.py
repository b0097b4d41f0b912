"""Settings and progress from records: against plain dictionaries, with late writers and compaction."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.kafka.state.tables import (
    ProgressState,
    SettingsState,
    Stamp,
    encode_record,
    parse_progress_key,
    progress_key,
    progress_partition,
    setting_key,
    topic_key,
    wrap_value,
)
from backend.progress.group_progress import NO_PROGRESS, Fence, GroupProgress, Key
from backend.records import ProgressView, QueueRef
from ddmq_common.errors import DamagedError, NewerFormatError
from tests.examples import examples

KEYS: list[Key] = [("billing", QueueRef("orders", 7, 0)), ("audit", QueueRef("orders", 7, 1))]
STAMPS = st.tuples(st.integers(0, 2), st.integers(0, 2)).map(lambda pair: Stamp(*pair))
# One write: who (an index of KEYS), under which stamp, the committed offset (None: a tombstone).
WRITES = st.tuples(st.integers(0, 1), STAMPS, st.none() | st.integers(0, 50))
Record = tuple[int, bytes, bytes | None]  # offset, key, value


def written(key: Key, stamp: Stamp, committed: int) -> tuple[bytes, bytes]:
    progress = GroupProgress()
    progress.fence = Fence(stamp.epoch, stamp.generation)
    progress.started = True
    progress.acks.reset(committed)
    return encode_record(key, progress)


def log_of(writes: list[tuple[int, Stamp, int | None]]) -> list[Record]:
    records: list[Record] = []
    for offset, (who, stamp, committed) in enumerate(writes):
        if committed is None:
            records.append((offset, progress_key(KEYS[who], stamp), None))
        else:
            records.append((offset, *written(KEYS[who], stamp, committed)))
    return records


def naive(records: list[Record]) -> dict[Key, ProgressView]:
    """The last value of each key; of those of one group and queue, that of the highest."""
    last = {key: value for _, key, value in records}
    latest: dict[Key, tuple[Stamp, int, int]] = {}
    for data, value in last.items():
        if value is not None:
            key, stamp = parse_progress_key(data)
            state = ProgressState()
            state.apply(data, value)
            committed = state.view(key).committed
            assert committed is not None
            before = latest.get(key, (Stamp(-1, -1), 0, 0))
            epoch = max(stamp.epoch, before[2])
            latest[key] = (stamp, committed, epoch) if stamp > before[0] else (before[0], before[1], epoch)
    return {
        key: ProgressView(committed, (), {}, epoch, stamp.generation)
        for key, (stamp, committed, epoch) in latest.items()
    }


def views(state: ProgressState) -> dict[Key, ProgressView]:
    return {key: state.view(key) for key in KEYS if key in state}


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(WRITES, max_size=25), st.data())
def test_progress_is_what_the_highest_key_says(
    writes: list[tuple[int, Stamp, int | None]], data: st.DataObject
) -> None:
    """Some are this process's own and count before they are followed; it never goes back."""
    records = log_of(writes)
    state, applied = ProgressState(), 0
    ahead: set[int] = set()
    for offset, key, value in records:
        if data.draw(st.booleans()):  # written by this process, and answered
            if state.followed.record_written(0, offset, key):
                state.apply(key, value)
            ahead.add(offset)
        while applied <= offset and data.draw(st.booleans()):
            at, brought, content = records[applied]
            if state.followed.record_followed(0, at, brought):
                state.apply(brought, content)
            applied += 1
        applied_records = [
            record for record in records[: offset + 1] if record[0] < applied or record[0] in ahead
        ]
        assert views(state) == naive(applied_records)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(WRITES, max_size=25), st.randoms(use_true_random=False))
def test_compaction_changes_nothing(writes: list[tuple[int, Stamp, int | None]], random: object) -> None:
    """Whatever has a later record of its key may be missing, a tombstone that is the last of its key too."""
    records = log_of(writes)
    last = {key: offset for offset, key, _ in records}
    remaining = [
        (offset, key, value)
        for offset, key, value in records
        if (last[key] == offset and value is not None) or random.random() < 0.5  # type: ignore[attr-defined]
    ]
    deleted = {key for _, key, value in records if value is None}
    if any(value is not None and key in deleted for _, key, value in remaining):
        remaining = [record for record in records if record in remaining or record[2] is None]
    state = ProgressState()
    for offset, key, value in remaining:
        assert state.followed.record_followed(0, offset, key)
        state.apply(key, value)
    assert views(state) == naive(records)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(WRITES, max_size=25))
def test_taking_outdated_keys_away_changes_nothing(writes: list[tuple[int, Stamp, int | None]]) -> None:
    state = ProgressState()
    for _, key, value in log_of(writes):
        state.apply(key, value)
    before = views(state)
    outdated = state.find_outdated(KEYS)
    assert state.find_outdated(KEYS) == outdated, "until they are gone"
    for _, key in outdated:
        state.apply(key, None)
    assert views(state) == before
    assert state.find_outdated(KEYS) == []
    for _, queue in KEYS:
        for _, data in state.find_of_topic(queue.topic, queue.incarnation):
            state.apply(data, None)
    assert len(state) == 0


def test_a_late_write_of_an_old_holder_changes_nothing() -> None:
    state, key = ProgressState(), KEYS[0]
    state.apply(*written(key, Stamp(0, 5), 10))
    state.apply(*written(key, Stamp(0, 6), 12))
    state.apply(*written(key, Stamp(0, 5), 99))
    assert state.view(key) == ProgressView(12, (), {}, 6, 0)
    assert [parse_progress_key(data)[1] for _, data in state.find_outdated(KEYS)] == [Stamp(0, 5)]


def test_a_reset_under_an_older_epoch_counts_and_the_newer_epoch_still_fences() -> None:
    state, key = ProgressState(), KEYS[0]
    state.apply(*written(key, Stamp(0, 6), 12))
    state.apply(*written(key, Stamp(1, 5), 3))
    assert state.view(key) == ProgressView(3, (), {}, 6, 1)
    assert state.find_fence(key) == Fence(6, 1)
    assert state.find_outdated(KEYS) == [], "its epoch is not in what counts yet"


def test_a_queue_without_records_has_no_progress() -> None:
    state = ProgressState()
    assert state.view(KEYS[0]) == NO_PROGRESS
    assert state.get(KEYS[0]) is None
    assert state.highest_epoch() == 0
    state.apply(progress_key(KEYS[0], Stamp(0, 1)), None)
    assert len(state) == 0


def test_all_keys_of_a_queue_are_in_one_partition() -> None:
    assert progress_partition(KEYS[0], 4) == progress_partition(KEYS[0], 4) < 4
    assert len({progress_partition(("g", QueueRef("t", 1, number)), 4) for number in range(64)}) == 4


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x01", b"\x01\x96", b"\x01\x00", b"x" * 30])
def test_a_damaged_progress_key_is_refused(data: bytes) -> None:
    with pytest.raises((DamagedError, NewerFormatError)):
        parse_progress_key(data)


def test_progress_under_another_s_key_is_damaged() -> None:
    state = ProgressState()
    _, value = written(KEYS[0], Stamp(0, 1), 1)
    state.apply(progress_key(KEYS[1], Stamp(0, 1)), value)
    with pytest.raises(DamagedError, match="stands under the key"):
        state.view(KEYS[1])


def test_settings_and_topics() -> None:
    state = SettingsState()
    assert state.apply(setting_key("group/a ü"), wrap_value(b"")) == ("group/a ü", None)
    assert state.apply(setting_key("group/a ü"), wrap_value(b"")) == (None, None)
    assert state.apply(topic_key("orders"), wrap_value(b"{}")) == (None, "orders")
    assert (state.settings, state.topic_infos) == ({"group/a ü": b""}, {"orders": b"{}"})
    assert state.apply(setting_key("group/a ü"), None) == ("group/a ü", None)
    assert state.apply(setting_key("never"), None) == (None, None)
    assert state.settings == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"q/x", b"\x01"), (b"s/x", b""), (b"s/x", b"\x00"), (b"s/x", b"\x02"), (b"s/\xff", b"\x01"),
        (b"t/\xff", None),
    ],
)  # fmt: skip
def test_a_setting_that_does_not_parse_is_refused(key: bytes, value: bytes | None) -> None:
    with pytest.raises((DamagedError, NewerFormatError)):
        SettingsState().apply(key, value)
