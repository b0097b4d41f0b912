"""What stands in the store, byte by byte (docs/formats-delay.md), and what is refused."""

from __future__ import annotations

import pytest

from ddmq_common.errors import DamagedError, NewerFormatError
from delay_service.store import keys, values
from delay_service.store.port import DueKey, IdKind, IdState, Pending

ONE = Pending(1, 2, 3, "t", b"u" * 16, "o", b"m" * 16, 4, 5, b"g", b"\x00\xff")
UUID = bytes(range(16))


def test_keys_sort_as_their_numbers() -> None:
    numbers = [0, 1, 255, 256, 1 << 40, keys.DUE_MS_MAX]
    packed = [keys.due_key(due, offset) for due in numbers for offset in numbers]
    assert packed == sorted(packed)
    assert all(keys.DUE <= key < keys.DUE_END for key in packed)
    assert keys.read_due(keys.due_key(7, 9)) == (7, 9)
    assert keys.read_due(keys.aside_key("a topic", 7, 9)) == (7, 9)
    assert keys.due_key(7, 9) < keys.just_after(DueKey(7, 9)) < keys.due_key(7, 10)


def test_topics_put_aside_do_not_mix() -> None:
    inside = [keys.aside_key("a", 0, 0), keys.aside_key("a", keys.DUE_MS_MAX, keys.OFFSET_MAX)]
    prefix = keys.aside_prefix("a")
    assert all(prefix <= key < keys.after(prefix) for key in inside)
    assert not prefix <= keys.aside_key("a!", 0, 0) < keys.after(prefix)


def test_bytes_are_as_the_page_says() -> None:
    assert keys.due_key(0x0102, 3) == b"d" + b"\0\0\0\0\0\0\1\2" + b"\0\0\0\0\0\0\0\3"
    assert keys.aside_key("t", 1, 2) == b"wt\0" + b"\0\0\0\0\0\0\0\1" + b"\0\0\0\0\0\0\0\2"
    assert keys.forget_key(5, UUID) == b"x" + b"\0\0\0\0\0\0\0\5" + UUID
    assert values.encode_state(IdState(IdKind.FIRED, 7, 8, 9)).hex() == "0102" + "".join(
        number.to_bytes(8, "big").hex() for number in (7, 8, 9)
    )
    assert values.encode_count(3, 1, 4).hex() == "02" + "".join(f"{number:016x}" for number in (3, 1, 4))
    assert values.encode_pending(ONE) == (
        b"\x01\x9b\x01\x02\x03\xa1t\xc4\x10" + b"u" * 16 + b"\xa1o\xc4\x10" + b"m" * 16
        + b"\x04\x05\xc4\x01g\xc4\x02\x00\xff"
    )  # fmt: skip


def test_values_come_back() -> None:
    assert values.decode_pending(values.encode_pending(ONE)) == ONE
    assert values.decode_all([(b"k", value) for value in values.encode_all([ONE, ONE])]) == [ONE, ONE]
    for kind in IdKind:
        state = IdState(kind, 1, keys.OFFSET_MAX, 3)
        assert values.decode_state(values.encode_state(state)) == state
    assert values.decode_count(values.encode_count(7, 0, 9)) == (7, 0, 9)
    first_release = bytes.fromhex("01" + "0000000000000007" + "0000000000000002")
    assert values.decode_count(first_release) == (7, 2, 0)


@pytest.mark.parametrize("value", [b"", b"\x01", b"\x01\x9b\x01", b"\x01" + b"\xff" * 40])
def test_what_does_not_parse_is_damage(value: bytes) -> None:
    with pytest.raises(DamagedError):
        values.decode_pending(value)
    with pytest.raises(DamagedError):
        values.decode_all([(b"k", value)])
    with pytest.raises(DamagedError):
        values.decode_state(value)
    with pytest.raises(DamagedError):
        values.decode_count(value)


def test_a_newer_version_is_named() -> None:
    newer = b"\x02" + values.encode_pending(ONE)[1:]
    for decode in (values.decode_pending, values.decode_state):
        with pytest.raises(NewerFormatError, match="version 2, this program knows versions up to 1"):
            decode(newer)
    with pytest.raises(NewerFormatError, match="version 3, this program knows versions up to 2"):
        values.decode_count(b"\x03" + values.encode_count(1, 2, 3)[1:])
    with pytest.raises(NewerFormatError):
        values.decode_all([(b"k", newer)])
