"""The ack map: which offsets of one queue one group has finished.

Everything below `committed` is finished; above it, offsets may be finished in any order, and nothing
bounds how far: `committed` is always the lowest unfinished offset, and moves as soon as it is finished.

Finished offsets above `committed` live in pages of PAGE_OFFSETS. A page that is partly finished is a
whole number used as a bitmap (bit n = n-th offset of the page); pages that are wholly finished are
only ranges of page numbers. So a million finished offsets above one unfinished cost a few hundred
bytes, and the worst case, every second one unfinished, costs little more than a bit each: about
1.4 MB for a span of ten million. The usual case, a run that starts at `committed` with nothing above,
touches no page at all.

Bits below `committed` in its own page mean nothing and may be anything.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping

PAGE_BITS = 13
PAGE_OFFSETS = 1 << PAGE_BITS
PAGE_FULL = (1 << PAGE_OFFSETS) - 1
OFFSET_END = (1 << 63) - 1  # no offset is as high as this: where an open range ends
_IN_PAGE = PAGE_OFFSETS - 1
_PAGE_WEIGHT = PAGE_OFFSETS // 8 + 12


class AckMap:
    """Finished offsets of one queue and the attempts of unfinished ones. Never yields, never blocks."""

    __slots__ = ("_attempts", "_full", "_pages", "_top", "committed")

    def __init__(self, committed: int = 0) -> None:
        self.committed = committed  # lowest unfinished offset; changed only by this class
        self._top = committed  # end of the highest finished range, when above committed
        self._pages: dict[int, int] = {}
        self._full = Runs()  # of page numbers
        self._attempts: dict[int, int] = {}

    @property
    def attempts(self) -> Mapping[int, int]:
        """Attempts so far of unfinished offsets; a live view, not to be changed."""
        return self._attempts

    @property
    def span(self) -> int:
        """From the committed offset to the end of the highest finished one; 0 when there is none above."""
        return max(0, self._top - self.committed)

    @property
    def taken_to(self) -> int:
        """Behind the highest offset that is finished or was tried."""
        return max(self.committed, self._top, 1 + max(self._attempts, default=-1))

    @property
    def weight(self) -> int:
        """About how many bytes it takes at most when it is written down."""
        return 32 + len(self._pages) * _PAGE_WEIGHT + len(self._full) * 12 + len(self._attempts) * 12

    def copy(self) -> AckMap:
        """Another one, with the same in it."""
        other = AckMap(self.committed)
        other._top = self._top
        other._pages = dict(self._pages)
        other._full = self._full.copy()
        other._attempts = dict(self._attempts)
        return other

    def finish(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Finish ranges `[start, end)`, in any order; what is finished already changes nothing."""
        for start, end in ranges:
            if start > self.committed:
                if start < end:
                    self._mark(start, end)
            elif end > self.committed:
                self._advance(end)
            else:
                continue
            if self._attempts:
                self._drop_attempts(start, end)

    def attempt(self, offset: int, attempts: int) -> None:
        """Record `attempts` so far; they only rise. A finished offset has none: nothing is recorded."""
        if attempts > self._attempts.get(offset, 0) and not self.is_finished(offset):
            self._attempts[offset] = attempts

    def is_finished(self, offset: int) -> bool:
        """True when `offset` is below the committed offset or was finished above it."""
        if offset < self.committed:
            return True
        page = offset >> PAGE_BITS
        bits = self._pages.get(page)
        if bits is None:
            return self._full.end_of(page) != page
        return bits >> (offset & _IN_PAGE) & 1 == 1

    def unfinished_from(self, offset: int, limit: int) -> list[tuple[int, int]]:
        """Up to `limit` unfinished ranges at or after `offset`, ascending and disjoint.

        When there is room for it the last one is what lies above everything finished; it ends at
        OFFSET_END.
        """
        found: list[tuple[int, int]] = []
        at = max(offset, self.committed)
        for start, end in self.finished(at):
            if start > at:
                if len(found) >= limit:
                    return found
                found.append((at, start))
            at = end
        if len(found) < limit:
            found.append((at, OFFSET_END))
        return found

    def finished(self, offset: int = 0) -> Iterator[tuple[int, int]]:
        """Finished ranges above the committed offset and not below `offset`: disjoint, not touching."""
        floor = max(offset, self.committed)
        held: tuple[int, int] | None = None
        for first, after, bits in self.pieces(floor >> PAGE_BITS):
            for start, end in piece_ranges(first, after, bits):
                if held is not None and held[1] == start:
                    held = (held[0], end)
                    continue
                if held is not None:
                    yield held
                held = (max(start, floor), end) if end > floor else None
        if held is not None:
            yield held

    def pieces(self, page: int = 0) -> list[tuple[int, int, int]]:
        """The raw store from `page` on, ascending: (first page, page after, bits), PAGE_FULL bits for runs.

        Without the meaningless bits below the committed offset; a piece with bits is one page.
        """
        own = self.committed >> PAGE_BITS
        below = (1 << (self.committed & _IN_PAGE)) - 1
        floor = max(page, own)
        found = [(at, at + 1, bits) for at, bits in self._pages.items() if at > own and at >= page]
        if own >= page and self._pages.get(own, 0) & ~below:
            found.append((own, own + 1, self._pages[own] & ~below))
        found += [(max(start, floor), end, PAGE_FULL) for start, end in self._full if end > floor]
        found.sort()
        return found

    def put_page(self, page: int, bits: int) -> None:
        """Finish the offsets of one page whose bits are set, all above the committed offset."""
        self._top = max(self._top, (page << PAGE_BITS) + bits.bit_length())
        self._set_bits(page, bits)

    def reset(self, offset: int) -> None:
        """Start again at `offset`, with nothing finished above it and no attempts."""
        self.committed = self._top = offset
        self._forget()
        self._attempts.clear()

    def _mark(self, start: int, end: int) -> None:
        """Finish `[start, end)`, all of it above the committed offset."""
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

    def _advance(self, end: int) -> None:
        """Everything below `end` is finished: move the committed offset there, or past it."""
        if end >= self._top:
            self.committed = end
            if self._pages or self._full:
                self._forget()
            return
        before = self.committed >> PAGE_BITS
        self.committed = self._finished_until(end)
        if self.committed >= self._top:
            self._forget()
        elif self.committed >> PAGE_BITS > before:
            self._drop_pages(before, self.committed >> PAGE_BITS)
            self._full.drop_below(self.committed >> PAGE_BITS)

    def _finished_until(self, offset: int) -> int:
        """The first unfinished offset at or after `offset`."""
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

    def _forget(self) -> None:
        self._pages.clear()
        self._full.clear()


def piece_ranges(first: int, after: int, bits: int) -> Iterator[tuple[int, int]]:
    """The finished ranges of one of `AckMap.pieces`, as offsets."""
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
    """A set of whole numbers kept as sorted, disjoint ranges `[start, end)` that merge as soon as they touch.

    Adding costs a search and a list insert.
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        """How many ranges, not how many numbers."""
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def add(self, start: int, end: int) -> None:
        """Put `[start, end)` in; an empty range changes nothing."""
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
        """Where the range that holds `number` ends; `number` itself when none holds it."""
        index = bisect_right(self._starts, number) - 1
        if index >= 0 and number < self._ends[index]:
            return self._ends[index]
        return number

    def drop_below(self, number: int) -> None:
        """Forget everything below `number`."""
        gone = bisect_right(self._ends, number)
        del self._starts[:gone], self._ends[:gone]
        if self._starts and self._starts[0] < number:
            self._starts[0] = number

    def copy(self) -> Runs:
        """Another one, with the same in it."""
        other = Runs()
        other._starts, other._ends = list(self._starts), list(self._ends)
        return other

    def clear(self) -> None:
        """Forget everything."""
        self._starts.clear()
        self._ends.clear()
