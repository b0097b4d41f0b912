"""Which days have to be computed again, by the names of their sample files alone.

With a day's tables lies a note of how many intervals each of its hours had when they were made. A day whose
hours still have as many is as it was. One that has fewer now has lost samples (retention): its tables know
more than could be computed again, and are kept. Merging files changes no number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from typing import NamedTuple
from zlib import crc32

from ddmq_common.metrics.samples import parse
from metrics_job.folders import Folders, Hour
from metrics_job.rollups.objectives import Goals

NOTE = "_samples.json"  # in the day's folder of `processes`; Spark and Arrow read no file that starts with _
TABLES_VERSION = 2  # another one when the same samples give other tables


@dataclass(frozen=True)
class Note:
    """What a day's tables were made of: intervals by hour (`2026-11-22 03`), and what was promised."""

    hours: dict[str, int] = field(default_factory=dict)
    promises: int = 0
    tables: int = TABLES_VERSION


class Sorted(NamedTuple):
    """Days by what is to be done with them."""

    compute: list[date]
    unchanged: list[date]
    lost: list[date]  # of which samples are gone


def intervals(names: Iterable[str]) -> int:
    """How many different intervals files with these names hold; one with another kind of name counts one."""
    found, by_instance = 0, dict[str, list[tuple[int, int]]]()
    for name in names:
        if not name.endswith(".jsonl") or name.startswith((".", "_")):
            continue
        said = parse(name)
        if said is None:
            found += 1
        else:
            by_instance.setdefault(said.instance, []).append((said.first, said.last))
    for ranges in by_instance.values():
        through = -1
        for first, last in sorted(ranges):
            found += max(0, last - max(first - 1, through))
            through = max(through, last)
    return found


def sort_days(
    days: Sequence[date],
    notes: Mapping[date, Note | None],
    now: Mapping[date, Note],
    newest: date,
    again: bool,
) -> Sorted:
    """`notes`: those of the tables that are there, `now`: as they would be; `again`: also what is unchanged.

    The `newest` day that has samples is never lost: it goes on, and is computed from what there is."""
    found = Sorted([], [], [])
    for day in days:
        note, fresh = notes[day], now[day]
        if note is None:
            found.compute.append(day)
        elif day != newest and any(fresh.hours.get(hour, 0) < n for hour, n in note.hours.items()):
            found.lost.append(day)
        elif note == fresh and not again:
            found.unchanged.append(day)
        else:
            found.compute.append(day)
    return found


def notes_now(
    folders: Folders, hours: Iterable[Hour], days: Sequence[date], promises: Goals
) -> dict[date, Note]:
    """The notes of tables that would be made now. A day's hours are its own and the two beside them."""
    hour = timedelta(hours=1)
    made = {day: Note(promises=crc32(repr(promises).encode())) for day in days}
    for one in hours:
        count = intervals(folders.names(one.path))
        for day in {(one.start + by).date() for by in (-hour, timedelta(), hour)} & made.keys():
            made[day].hours[f"{one.start:%Y-%m-%d %H}"] = count
    return made


def read_note(folders: Folders, folder: str) -> Note | None:
    """The note in a day's folder; None when there is none that can be read."""
    text = folders.read(f"{folder}/{NOTE}")
    try:
        return None if text is None else Note(**json.loads(text))
    except (ValueError, TypeError):
        return None


def write_note(folders: Folders, folder: str, note: Note) -> None:
    """Nothing happens when the folder is not there: a day without any process."""
    if folders.exists(folder):
        folders.write(f"{folder}/{NOTE}", json.dumps(asdict(note)))
