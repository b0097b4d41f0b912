"""The ids of series as Spark's `xxhash64` makes them, so that rows of both ways of reading fit together.

Spark hashes a row of texts by chaining: each text is hashed with the former result as its seed, the first one
with 42; a null leaves the result as it is. The hash of one text is XXH64 of its UTF-8 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

SPARK_SEED = 42
_MASK = (1 << 64) - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def spark_hash(texts: Iterable[str | None]) -> int:
    """What `xxhash64` of these columns is: a signed 64-bit number."""
    result = SPARK_SEED
    for text in texts:
        if text is not None:
            result = xxh64(text.encode(), result)
    return result - (1 << 64) if result >> 63 else result


def xxh64(data: bytes, seed: int) -> int:
    """XXH64 of the bytes, unsigned."""
    stripes, rest = divmod(len(data), 32)
    result = _of_stripes(data, stripes, seed) if stripes else (seed + _P5) & _MASK
    result, at = (result + len(data)) & _MASK, stripes * 32
    for (word,) in struct.iter_unpack("<Q", data[at : at + (rest & ~7)]):
        result = (_left(result ^ _round(0, word), 27) * _P1 + _P4) & _MASK
    at += rest & ~7
    if rest & 4:
        (half,) = struct.unpack_from("<I", data, at)
        result, at = (_left(result ^ (half * _P1 & _MASK), 23) * _P2 + _P3) & _MASK, at + 4
    for byte in data[at:]:
        result = _left(result ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    result = (result ^ (result >> 33)) * _P2 & _MASK
    result = (result ^ (result >> 29)) * _P3 & _MASK
    return result ^ (result >> 32)


def _of_stripes(data: bytes, stripes: int, seed: int) -> int:
    lanes = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
    for words in struct.iter_unpack("<4Q", data[: stripes * 32]):
        lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
    result = sum(_left(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
    for lane in lanes:
        result = ((result ^ _round(0, lane)) * _P1 + _P4) & _MASK
    return result


def _round(lane: int, word: int) -> int:
    return _left((lane + word * _P2) & _MASK, 31) * _P1 & _MASK


def _left(value: int, by: int) -> int:
    return ((value << by) | (value >> (64 - by))) & _MASK
