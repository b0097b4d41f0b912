"""The id of an occurrence: its shape, its shard, and that no text breaks it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq_common.delays.command import DelayId, is_uuid, parse_delay_id, shard_of, uuid_bytes

UUID = "a4207970-e5e1-11f1-a4e0-02fc00000001"
ID = b"1795289273-2-1795462073-0-0-0-7-" + UUID.encode()
letters = st.text("0123456789abcdefz", min_size=32, max_size=32)
uuids = letters.map(lambda t: f"{t[:8]}-{t[8:12]}-{t[12:16]}-{t[16:20]}-{t[20:]}")
numbers = st.integers(0, 10**19 - 1)
ids = st.builds(
    DelayId,
    st.integers(0, 9_999_999_999),
    st.integers(0, 9),
    st.integers(0, 9_999_999_999),
    numbers,
    numbers,
    numbers,
    st.integers(-999_999_999, 999_999_999),
    uuids,
)


def test_an_id_of_a_real_server():
    assert parse_delay_id(ID) == DelayId(1795289273, 2, 1795462073, 0, 0, 0, 7, UUID)


@given(ids)
def test_every_id_is_parsed_back(delay_id):
    assert parse_delay_id(delay_id.text().encode()) == delay_id


def test_a_negative_shard_is_read_with_its_sign():
    parsed = parse_delay_id(ID.replace(b"-7-", b"--7-", 1))
    assert parsed is not None
    assert parsed.shard == -7


@pytest.mark.parametrize(
    "text",
    [
        b"", b"-", ID[1:], b"1" + ID, ID + b"\n", ID + b"0", ID.upper(), ID.replace(b"-2-", b"-22-", 1),
        ID.replace(b"-0-", b"--", 1), "１795289273".encode() + ID[10:], ID.replace(b"-7-", b"---7-", 1),
        ID.replace(b"-0-", b"-" + b"1" * 20 + b"-", 1), b"1" * 1_000_000,
    ],
)  # fmt: skip
def test_malformed_ids_are_not_parsed(text):
    assert parse_delay_id(text) is None


@given(st.binary(max_size=160))
def test_no_text_raises(text):
    parse_delay_id(text)


@given(uuids, st.integers(1, 1_024))
def test_a_shard_is_in_its_range(uuid, shards):
    assert is_uuid(uuid.encode())
    assert 0 <= shard_of(uuid, shards) < shards


def test_the_shard_of_a_uuid_never_changes():
    """These numbers may never change: pending messages lie in the shard that they name."""
    assert [shard_of(UUID[:-1] + digit, 16) for digit in "0123456789"] == [9, 15, 5, 3, 0, 6, 12, 10, 11, 13]


def test_uuids_spread_over_the_shards():
    counts = [0] * 16
    for number in range(16_000):
        counts[shard_of(f"{number:08x}-e5e1-11f1-a4e0-02fc00000001", 16)] += 1
    assert min(counts) > 800


def test_bytes_of_a_uuid_are_its_value_or_a_hash():
    assert uuid_bytes(UUID) == bytes.fromhex(re.sub("-", "", UUID))
    other = "z" + UUID[1:]
    assert len(uuid_bytes(other)) == 16
    assert uuid_bytes(other) != uuid_bytes("y" + UUID[1:])
