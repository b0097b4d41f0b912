"""Sort many 64-bit numbers in small steps and little memory. Pure.

A sort in C holds the interpreter for its whole length, so nothing larger than SORT_MAX numbers is ever
sorted at once: numbers are dealt into buckets by their top bits, an oversized bucket (a popular key)
again by its next bits. Above PASS_MAX numbers the source is read once per part of the number range.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator

SORT_MAX = 2_048
PASS_MAX = 2_000_000  # 16 MB
_DEAL = 4_096
_FURTHER_BITS = 8

Source = Callable[[], Iterable[list[int]]]


def ascending(source: Source, count: int) -> Iterator[list[int]]:
    """All numbers of `source` in order, in lists of up to SORT_MAX; an empty list is just a step.

    `source` gives the same numbers every time it is called; `count` is how many there are.
    """
    passes = 1
    while count > passes * PASS_MAX:
        passes *= 2
    width = (1 << 64) // passes
    for low in range(0, 1 << 64, width):
        yield from _one_pass(source, low, width, count // passes)


def _one_pass(source: Source, low: int, width: int, count: int) -> Iterator[list[int]]:
    bits = max(1, (count // SORT_MAX * 2).bit_length())
    shift = (width - 1).bit_length() - bits
    buckets = [array("Q") for _ in range(1 << bits)]
    high = low + width
    for numbers in source():
        for start in range(0, len(numbers), _DEAL):
            chunk = [number for number in numbers[start : start + _DEAL] if low <= number < high]
            _deal(chunk, buckets, shift, low)
            yield []
    for index, bucket in enumerate(buckets):
        buckets[index] = array("Q")
        yield from _sorted_bucket(bucket, shift)


def _deal(numbers: Iterable[int], buckets: list[array[int]], shift: int, low: int) -> None:
    for number in numbers:
        buckets[(number - low) >> shift].append(number)


def _sorted_bucket(bucket: array[int], shift: int) -> Iterator[list[int]]:
    """`bucket` holds numbers that agree in all bits from `shift` on."""
    if len(bucket) <= SORT_MAX or shift == 0:
        yield sorted(bucket)
        return
    further = max(0, shift - _FURTHER_BITS)
    buckets = [array("Q") for _ in range(1 << (shift - further))]
    low = bucket[0] >> shift << shift
    for start in range(0, len(bucket), _DEAL):
        _deal(bucket[start : start + _DEAL], buckets, further, low)
        yield []
    for smaller in filter(None, buckets):
        yield from _sorted_bucket(smaller, further)
