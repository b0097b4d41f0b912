"""Which files may hold the same lines, by their names (docs/formats-samples.md).

A line is known by (instance, seq, metric, labels), and a name tells the instance and the first and last
sequence number. Files whose numbers overlap (an hour's merged file beside its parts, a file that was sent
again into another folder) make one unit: a line that is there twice is there twice within its unit. All
others are units of their own. A file with a name of another kind may hold anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ddmq_common.metrics.samples import SampleName, parse


class Units(NamedTuple):
    """What the names of some files say."""

    shared: dict[str, str]  # name of a file that is not alone in its unit -> the unit: its first name
    strange: bool  # a name says nothing

    def unit(self, name: str) -> str:
        """The unit of a file."""
        return self.shared.get(name, name)


def units_of(paths: Iterable[str]) -> Units:
    """The units of these files; paths may be URLs."""
    names = [path.rpartition("/")[2] for path in paths]
    known = sorted((said, name) for name in names if (said := parse(name)) is not None)
    shared: dict[str, str] = {}
    unit, instance, last = "", "", -1
    for said, name in known:
        if said.instance != instance or said.first > last:
            unit, instance, last = name, said.instance, said.last
        else:
            shared[unit] = shared[name] = unit
            last = max(last, said.last)
    return Units(shared, len(known) < len(names))


def holds(names: Iterable[str], intervals: Iterable[tuple[str, int]]) -> bool:
    """Whether these names of files say that they can hold each of these (instance, seq)."""
    ranges: dict[str, list[SampleName]] = {}
    for said in filter(None, map(parse, names)):
        ranges.setdefault(said.instance, []).append(said)
    return all(
        any(one.first <= seq <= one.last for one in ranges.get(instance, ())) for instance, seq in intervals
    )
