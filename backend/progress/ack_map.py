"""The ack map: the offsets of one queue that one group has finished.

Everything below `committed` is finished; above it, offsets may be finished in any order, and nothing
bounds how far: `committed` is always the lowest unfinished offset, and moves as soon as it is finished.

Finished offsets above `committed` are stored in pages of PAGE_OFFSETS. A partly finished page is an integer
used as a bitmap (bit n = n-th offset of the page); completely finished pages are stored as ranges of page
numbers. So a million finished offsets above an unfinished one cost a few hundred bytes. In the worst case,
with every second offset unfinished, an offset costs little more than a bit: about 1.4 MB for ten million
offsets. In the common case, a range that starts at `committed` with nothing above it, no page is touched.

Bits below `committed` in its own page have no meaning.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping

PAGE_BITS = 13
PAGE_OFFSETS = 1 << PAGE_BITS
PAGE_FULL = (1 << PAGE_OFFSETS) - 1
OFFSET_END = (1 << 63) - 1  # above every offset: the end of an open range
_IN_PAGE = PAGE_OFFSETS - 1
_PAGE_WEIGHT = PAGE_OFFSETS // 8 + 12


class AckMap:
    """The finished offsets of one queue, and the attempts of unfinished ones. Never yields or blocks."""

    __slots__ = ("_attempts", "_full", "_pages", "_top", "committed")

    def __init__(self, committed: int = 0) -> None:
        self.committed = committed  # lowest unfinished offset; changed only by this class
        self._top = committed  # end of the highest finished range, when above committed
        self._pages: dict[int, int] = {}
        self._full = Runs()  # of page numbers
        self._attempts: dict[int, int] = {}

    @property
    def attempts(self) -> Mapping[int, int]:
        """The attempts so far of unfinished offsets; a live view that callers must not change."""
        return self._attempts

    @property
    def span(self) -> int:
        """The distance from the committed offset to the end of the highest finished range above it, or 0."""
        return max(0, self._top - self.committed)

    @property
    def next_unused(self) -> int:
        """The offset after the highest one that is finished or was tried."""
        return max(self.committed, self._top, 1 + max(self._attempts, default=-1))

    @property
    def weight(self) -> int:
        """The approximate maximum of bytes that the encoded map takes."""
        return 32 + len(self._pages) * _PAGE_WEIGHT + len(self._full) * 12 + len(self._attempts) * 12

    def copy(self) -> AckMap:
        """Return an independent copy."""
        other = AckMap(self.committed)
        other._top = self._top
        other._pages = dict(self._pages)
        other._full = self._full.copy()
        other._attempts = dict(self._attempts)
        return other

    def finish(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Mark ranges `[start, end)` as finished, in any order; repetitions change nothing."""
        for start, end in ranges:
            if start > self.committed:
                if start < end:
                    self._mark_range(start, end)
            elif end > self.committed:
                self._advance_to(end)
            else:
                continue
            if self._attempts:
                self._drop_attempts(start, end)

    def record_attempts(self, offset: int, attempts: int) -> None:
        """Store the number of delivery attempts of the message at `offset`.

        A number not above the stored one is ignored; so is any number for a finished offset.
        """
        if attempts > self._attempts.get(offset, 0) and not self.is_finished(offset):
            self._attempts[offset] = attempts

    def is_finished(self, offset: int) -> bool:
        """Return whether `offset` is below the committed offset or was finished above it."""
        if offset < self.committed:
            return True
        page = offset >> PAGE_BITS
        bits = self._pages.get(page)
        if bits is None:
            return self._full.end_of(page) != page
        return bits >> (offset & _IN_PAGE) & 1 == 1

    def unfinished_from(self, offset: int, limit: int) -> list[tuple[int, int]]:
        """Return up to `limit` unfinished ranges at or after `offset`, ascending and disjoint.

        If `limit` allows it, the last one is the range above all finished offsets; it ends at OFFSET_END.
        """
        ranges: list[tuple[int, int]] = []
        at = max(offset, self.committed)
        for start, end in self.finished(at):
            if start > at:
                if len(ranges) >= limit:
                    return ranges
                ranges.append((at, start))
            at = end
        if len(ranges) < limit:
            ranges.append((at, OFFSET_END))
        return ranges

    def finished(self, offset: int = 0) -> Iterator[tuple[int, int]]:
        """Yield the finished ranges above the committed offset, from `offset` on: disjoint, not touching."""
        floor = max(offset, self.committed)
        pending: tuple[int, int] | None = None
        for first, after, bits in self.list_pages(floor >> PAGE_BITS):
            for start, end in page_ranges(first, after, bits):
                if pending is not None and pending[1] == start:
                    pending = (pending[0], end)
                    continue
                if pending is not None:
                    yield pending
                pending = (max(start, floor), end) if end > floor else None
        if pending is not None:
            yield pending

    def count_above(self) -> int:
        """Return how many offsets above the committed offset are finished."""
        count = 0
        for first, after, bits in self.list_pages():
            count += (after - first) * PAGE_OFFSETS if bits == PAGE_FULL else bits.bit_count()
        return count

    def list_pages(self, page: int = 0) -> list[tuple[int, int, int]]:
        """Return the stored pages from `page` on, ascending, as (first page, page after, bits).

        The bits are PAGE_FULL for a range of full pages, else those of one page, without the meaningless bits
        below the committed offset.
        """
        own = self.committed >> PAGE_BITS
        below = (1 << (self.committed & _IN_PAGE)) - 1
        floor = max(page, own)
        chunks = [(at, at + 1, bits) for at, bits in self._pages.items() if at > own and at >= page]
        if own >= page and self._pages.get(own, 0) & ~below:
            chunks.append((own, own + 1, self._pages[own] & ~below))
        chunks += [(max(start, floor), end, PAGE_FULL) for start, end in self._full if end > floor]
        chunks.sort()
        return chunks

    def put_page(self, page: int, bits: int) -> None:
        """Mark the offsets whose bits are set in `bits`, a bitmap of one page, as finished.

        All of them must be above the committed offset.
        """
        self._top = max(self._top, (page << PAGE_BITS) + bits.bit_length())
        self._set_bits(page, bits)

    def reset(self, offset: int) -> None:
        """Restart at `offset`, with nothing finished above it and no attempts."""
        self.committed = self._top = offset
        self._forget_pages()
        self._attempts.clear()

    def _mark_range(self, start: int, end: int) -> None:
        """Mark `[start, end)`, all of it above the committed offset, as finished."""
        if end > self._top:
            self._top = end
        page, last = start >> PAGE_BITS, (end - 1) >> PAGE_BITS
        if page == last:
            self._set_bits(page, (1 << (end - start)) - 1 << (start & _IN_PAGE))
            return
        self._set_bits(page, PAGE_FULL >> (start & _IN_PAGE) << (start & _IN_PAGE))
        self._set_bits(last, PAGE_FULL >> (_IN_PAGE - (end - 1 & _IN_PAGE)))
        if last - page > 1:
            self._drop_pages(page + 1, last)
            self._full.add(page + 1, last)

    def _set_bits(self, page: int, bits: int) -> None:
        old = self._pages.get(page)
        if old is not None:
            bits |= old
        elif self._full and self._full.end_of(page) != page:
            return
        if bits == PAGE_FULL:
            self._pages.pop(page, None)
            self._full.add(page, page + 1)
        else:
            self._pages[page] = bits

    def _advance_to(self, end: int) -> None:
        """Move the committed offset to `end`, or past it if the offsets after it are finished too."""
        if end >= self._top:
            self.committed = end
            if self._pages or self._full:
                self._forget_pages()
            return
        before = self.committed >> PAGE_BITS
        self.committed = self._finished_until(end)
        if self.committed >= self._top:
            self._forget_pages()
        elif self.committed >> PAGE_BITS > before:
            self._drop_pages(before, self.committed >> PAGE_BITS)
            self._full.drop_below(self.committed >> PAGE_BITS)

    def _finished_until(self, offset: int) -> int:
        """Return the first unfinished offset at or after `offset`."""
        while True:
            page = offset >> PAGE_BITS
            bits = self._pages.get(page)
            if bits is None:
                end_page = self._full.end_of(page)
                if end_page == page:
                    return offset
                offset = end_page << PAGE_BITS
                continue
            unset = ~(bits >> (offset & _IN_PAGE))
            offset += (unset & -unset).bit_length() - 1
            if offset >> PAGE_BITS == page:
                return offset

    def _drop_pages(self, start: int, end: int) -> None:
        pages = self._pages
        if end - start > len(pages):
            for page in [page for page in pages if start <= page < end]:
                del pages[page]
            return
        for page in range(start, end):
            pages.pop(page, None)

    def _drop_attempts(self, start: int, end: int) -> None:
        attempts = self._attempts
        if end - start > len(attempts):
            for offset in [offset for offset in attempts if start <= offset < end]:
                del attempts[offset]
            return
        for offset in range(start, end):
            attempts.pop(offset, None)

    def _forget_pages(self) -> None:
        self._pages.clear()
        self._full.clear()


def page_ranges(first: int, after: int, bits: int) -> Iterator[tuple[int, int]]:
    """Yield the finished ranges of one item of `AckMap.pages`, as offsets."""
    base = first << PAGE_BITS
    if bits == PAGE_FULL:
        yield base, after << PAGE_BITS
        return
    text = f"{bits:b}"[::-1]
    start = text.find("1")
    while start >= 0:
        end = text.find("0", start)
        if end < 0:
            end = len(text)
        yield base + start, base + end
        start = text.find("1", end)


class Runs:
    """A set of integers, stored as sorted, disjoint ranges `[start, end)` that merge when they touch.

    Adding costs a search and a list insert.
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        """Return the number of ranges, not of integers."""
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def add(self, start: int, end: int) -> None:
        """Add `[start, end)`; an empty range changes nothing."""
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        after = bisect_right(self._starts, end)
        if first < after:
            start = min(start, self._starts[first])
            end = max(end, self._ends[after - 1])
        self._starts[first:after] = [start]
        self._ends[first:after] = [end]

    def end_of(self, number: int) -> int:
        """Return the end of the range that contains `number`, or `number` itself if none does."""
        index = bisect_right(self._starts, number) - 1
        if index >= 0 and number < self._ends[index]:
            return self._ends[index]
        return number

    def drop_below(self, number: int) -> None:
        """Remove all numbers below `number`."""
        count = bisect_right(self._ends, number)
        del self._starts[:count], self._ends[:count]
        if self._starts and self._starts[0] < number:
            self._starts[0] = number

    def copy(self) -> Runs:
        """Return an independent copy."""
        other = Runs()
        other._starts, other._ends = list(self._starts), list(self._ends)
        return other

    def clear(self) -> None:
        """Remove all numbers from the set."""
        self._starts.clear()
        self._ends.clear()
