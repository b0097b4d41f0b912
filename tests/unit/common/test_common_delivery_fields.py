"""Single parts of delivery bytes are those that decoding the whole gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq_common.delivery import decode, encode, key_of, properties_of, tag_of, value_of
from ddmq_common.errors import DamagedError

SIZES = st.sampled_from([0, 1, 127, 128, 129, 16_383, 16_384, 20_000])
TEXTS = st.one_of(st.binary(max_size=40), SIZES.map(lambda size: b"x" * size))
PROPERTIES = st.dictionaries(st.binary(max_size=200), st.binary(max_size=200), max_size=5)


@given(key=TEXTS, value=TEXTS, tag=TEXTS, properties=PROPERTIES)
def test_each_reader_gives_the_field_of_the_decoded_delivery(
    key: bytes, value: bytes, tag: bytes, properties: dict[bytes, bytes]
) -> None:
    delivery = encode(key, value, tag, properties)
    content = decode(delivery)
    assert (key_of(delivery), value_of(delivery), tag_of(delivery)) == (
        content.key,
        content.value,
        content.tag,
    )
    names = set(list(properties)[::2]) | {b"other"}
    expected = {name: text for name, text in content.properties.items() if name in names}
    assert properties_of(delivery, names) == expected


@pytest.mark.parametrize("read", [value_of, tag_of, lambda delivery: properties_of(delivery, {b"p"})])
@pytest.mark.parametrize("delivery", [b"", b"\x18", b"\x18\x05ab", b"\x99\x01a", b"\x28" + b"\xff" * 12])
def test_bytes_that_are_no_delivery_are_damage(read: object, delivery: bytes) -> None:
    with pytest.raises(DamagedError, match="do not parse"):
        read(delivery)  # type: ignore[operator]


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_damage(delivery: bytes) -> None:
    for read in (key_of, value_of, tag_of, lambda encoded: properties_of(encoded, {b"a"})):
        try:
            read(delivery)
        except DamagedError:
            continue
