"""What stands in the store, byte by byte (docs/formats-delay.md), and what is refused."""

from __future__ import annotations

import pytest

from ddmq_common.errors import DamagedError, NewerFormatError
from delay_service.store import layout
from delay_service.store.port import DueKey, IdKind, IdState, Pending

ONE = Pending(1, 2, 3, "t", b"u" * 16, "o", b"m" * 16, 4, 5, b"g", b"\x00\xff")
UUID = bytes(range(16))


def test_keys_sort_as_their_numbers() -> None:
    numbers = [0, 1, 255, 256, 1 << 40, layout.DUE_MS_MAX]
    packed = [layout.due_key(due, offset) for due in numbers for offset in numbers]
    assert packed == sorted(packed)
    assert all(layout.DUE <= key < layout.DUE_END for key in packed)
    assert layout.read_due(layout.due_key(7, 9)) == (7, 9)
    assert layout.read_due(layout.aside_key("a topic", 7, 9)) == (7, 9)
    assert layout.due_key(7, 9) < layout.just_after(DueKey(7, 9)) < layout.due_key(7, 10)


def test_topics_put_aside_do_not_mix() -> None:
    inside = [layout.aside_key("a", 0, 0), layout.aside_key("a", layout.DUE_MS_MAX, layout.OFFSET_MAX)]
    prefix = layout.aside_prefix("a")
    assert all(prefix <= key < layout.range_end(prefix) for key in inside)
    assert not prefix <= layout.aside_key("a!", 0, 0) < layout.range_end(prefix)


def test_encodings_match_the_documented_bytes() -> None:
    assert layout.due_key(0x0102, 3) == b"d" + b"\0\0\0\0\0\0\1\2" + b"\0\0\0\0\0\0\0\3"
    assert layout.aside_key("t", 1, 2) == b"wt\0" + b"\0\0\0\0\0\0\0\1" + b"\0\0\0\0\0\0\0\2"
    assert layout.forget_key(5, UUID) == b"x" + b"\0\0\0\0\0\0\0\5" + UUID
    assert layout.encode_state(IdState(IdKind.FIRED, 7, 8, 9)).hex() == "0102" + "".join(
        number.to_bytes(8, "big").hex() for number in (7, 8, 9)
    )
    assert layout.encode_count(3, 1, 4).hex() == "02" + "".join(f"{number:016x}" for number in (3, 1, 4))
    assert layout.encode_pending(ONE) == (
        b"\x01\x9b\x01\x02\x03\xa1t\xc4\x10" + b"u" * 16 + b"\xa1o\xc4\x10" + b"m" * 16
        + b"\x04\x05\xc4\x01g\xc4\x02\x00\xff"
    )  # fmt: skip


def test_values_are_decoded_as_encoded() -> None:
    assert layout.decode_pending(layout.encode_pending(ONE)) == ONE
    assert layout.decode_all([(b"k", value) for value in layout.encode_all([ONE, ONE])]) == [ONE, ONE]
    for kind in IdKind:
        state = IdState(kind, 1, layout.OFFSET_MAX, 3)
        assert layout.decode_state(layout.encode_state(state)) == state
    assert layout.decode_count(layout.encode_count(7, 0, 9)) == (7, 0, 9)
    first_release = bytes.fromhex("01" + "0000000000000007" + "0000000000000002")
    assert layout.decode_count(first_release) == (7, 2, 0)


@pytest.mark.parametrize("value", [b"", b"\x01", b"\x01\x9b\x01", b"\x01" + b"\xff" * 40])
def test_what_does_not_parse_is_damage(value: bytes) -> None:
    with pytest.raises(DamagedError):
        layout.decode_pending(value)
    with pytest.raises(DamagedError):
        layout.decode_all([(b"k", value)])
    with pytest.raises(DamagedError):
        layout.decode_state(value)
    with pytest.raises(DamagedError):
        layout.decode_count(value)


def test_a_newer_version_is_named() -> None:
    newer = b"\x02" + layout.encode_pending(ONE)[1:]
    for decode in (layout.decode_pending, layout.decode_state):
        with pytest.raises(NewerFormatError, match="version 2, this program knows versions up to 1"):
            decode(newer)
    with pytest.raises(NewerFormatError, match="version 3, this program knows versions up to 2"):
        layout.decode_count(b"\x03" + layout.encode_count(1, 2, 3)[1:])
    with pytest.raises(NewerFormatError):
        layout.decode_all([(b"k", newer)])
