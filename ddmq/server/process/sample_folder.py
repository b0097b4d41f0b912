"""The folder of sample files: write one, merge those of past hours, delete what is too old or too much.

Everything here blocks, so it runs in a native thread. Several processes share the folder: a file that another
one deleted first is no error. A file is written under a hidden name and renamed, so that a reader never sees
half of it; nothing is synced, because a sample lost with the machine costs a gap that the sequence numbers
show. Merging writes the hour's file; the next sweep deletes the files that it covers. In between, and after a
crash for longer, a reader sees both.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ddmq_common.metrics import samples
from ddmq_common.metrics.samples import HOUR_MS, SampleName

MERGED_BYTES_MAX = 64 << 20  # of a merged file: a reader has all of it in memory
MERGE_AFTER_MS = 2 * HOUR_MS  # after the end of the hour: the job's watermark has passed it
DAY_MS = 24 * HOUR_MS
REASONS = {
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EFBIG: "full",
    errno.EROFS: "read-only",
    errno.ENOENT: "missing",
    errno.ENOTDIR: "missing",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
}


def failure_reason(error: OSError) -> str:
    """Return the value of the metric's label `reason` for an error."""
    return REASONS.get(error.errno or 0, "other")


class FolderCalls:
    """The file operations that change the folder, so that tests can make them fail."""

    def write(self, path: Path, payload: bytes) -> None:
        """Write a file, replacing an existing one."""
        with path.open("wb") as file:
            file.write(payload)

    def join(self, path: Path, sources: Iterable[Path]) -> None:
        """Write a file with the contents of all files in `sources`, in order."""
        with path.open("wb") as target:
            for source in sources:
                with source.open("rb") as file:
                    shutil.copyfileobj(file, target, 1 << 20)

    def rename(self, path: Path, name: str) -> None:
        """Rename a file in its folder."""
        path.rename(path.with_name(name))

    def delete(self, path: Path) -> bool:
        """Delete a file. Returns False if another process did so first."""
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True


class Swept(NamedTuple):
    """The result of a sweep: how many files were deleted, by reason (also those that a merged file replaces),
    the remaining bytes, and the errors."""

    deleted: dict[str, int]
    remaining_bytes: int
    failed: list[OSError]


class _Hour(NamedTuple):
    """The folder with the samples of one hour, and the start of that hour in epoch ms."""

    path: Path
    start_ms: int


class SampleFolder:
    """The folder `root` with the samples of all processes. A process merges only its own files (those of
    `instance`), but deletes old files of all processes."""

    def __init__(self, root: Path, instance: str, disk: FolderCalls | None = None) -> None:
        self.root = root
        self.instance = instance
        self._disk = disk or FolderCalls()

    def write(self, folder: str, name: SampleName, payload: bytes) -> None:
        """Write a sample file atomically. Raises OSError."""
        path = self.root / folder / name.hidden
        try:
            try:
                self._disk.write(path, payload)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._disk.write(path, payload)
            self._disk.rename(path, str(name))
        except OSError:
            self._discard_file(path)
            raise

    def _discard_file(self, path: Path) -> None:
        try:
            self._disk.delete(path)
        except OSError:
            pass  # the sweep finds it

    def sweep(self, now_ms: int, keep_days: int, bytes_max: int) -> Swept:
        """Merge files, then delete those older than `keep_days`, then the oldest ones until at most
        `bytes_max` remain. The next sweep retries what fails."""
        swept = _Sweep(self._disk, now_ms)
        for hour in self._list_hours(swept):
            if hour.start_ms + HOUR_MS + MERGE_AFTER_MS <= now_ms:
                swept.delete_leftovers(hour)
                swept.merge(hour, self.instance)
            if hour.start_ms + HOUR_MS + keep_days * DAY_MS <= now_ms:
                swept.clear(hour)
        remaining = swept.shrink(self._list_hours(swept), bytes_max)
        return Swept(swept.deleted, remaining, swept.failed)

    def _list_hours(self, swept: _Sweep) -> list[_Hour]:
        """Return the folders of hours, oldest first."""
        hours = []
        for date in swept.list_entries(self.root):
            for hour in swept.list_entries(date) if date.name.startswith("date=") else ():
                start = samples.hour_start(date.name, hour.name)
                if start is not None:
                    hours.append(_Hour(hour, start))
        return sorted(hours, key=lambda hour: hour.start_ms)


class _Sweep:
    """One sweep in progress: how many files it has deleted, and its errors so far."""

    def __init__(self, disk: FolderCalls, now_ms: int) -> None:
        self.deleted: dict[str, int] = {}
        self.failed: list[OSError] = []
        self._disk = disk
        self._now_ms = now_ms

    def list_entries(self, folder: Path) -> list[Path]:
        """Return the entries of a folder, sorted by name; none if it cannot be read."""
        try:
            return sorted(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.failed.append(error)
            return []

    def own_files(self, hour: _Hour) -> Iterator[tuple[Path, SampleName]]:
        """Yield the sample files in the folder of an hour, whichever process wrote them; other files are left
        out."""
        for path in self.list_entries(hour.path):
            name = samples.parse(path.name)
            if name is not None:
                yield path, name

    def delete(self, paths: Iterable[Path], why: str) -> None:
        """Delete files; record those that cannot be deleted in `failed`."""
        for path in paths:
            try:
                self.deleted[why] = self.deleted.get(why, 0) + self._disk.delete(path)
            except OSError as error:
                self.failed.append(error)

    def delete_leftovers(self, hour: _Hour) -> None:
        """Delete the unfinished files of processes that died while writing them."""
        hidden = [
            path for path in self.list_entries(hour.path) if samples.parse_hidden(path.name) is not None
        ]
        self.delete(hidden, "left")

    def merge(self, hour: _Hour, instance: str) -> None:
        """Delete files that a merged file covers, and merge the other files of `instance` into a new one.

        The new file's sources stay until the next sweep: a reader that listed them can still read them.
        """
        files = list(self.own_files(hour))
        merged_names = [name for _, name in files if name.merged]
        unmerged = [
            (path, name, any(file.covers(name) for file in merged_names))
            for path, name in files
            if not name.merged
        ]
        self.delete((path for path, _, covered in unmerged if covered), "merged")
        fresh = [
            (path, name) for path, name, covered in unmerged if name.instance == instance and not covered
        ]
        for some in self._group_by_size(sorted(fresh, key=lambda item: item[1].first)):
            if len(some) > 1:
                self._join(hour.path, some)

    def _group_by_size(self, files: list[tuple[Path, SampleName]]) -> Iterator[list[tuple[Path, SampleName]]]:
        """Yield groups of neighbouring files of up to MERGED_BYTES_MAX in total; a larger file is a group of
        its own."""
        some: list[tuple[Path, SampleName]] = []
        capacity = MERGED_BYTES_MAX
        for file in files:
            try:
                size = file[0].stat().st_size
            except OSError as error:
                self.failed.append(error)
                return
            if some and size > capacity:
                yield some
                some, capacity = [], MERGED_BYTES_MAX
            some.append(file)
            capacity -= size
        yield some

    def _join(self, folder: Path, files: list[tuple[Path, SampleName]]) -> None:
        name = SampleName(files[0][1].instance, files[0][1].first, files[-1][1].last, True)
        path = folder / name.hidden
        try:
            self._disk.join(path, (file for file, _ in files))
            self._disk.rename(path, str(name))
        except OSError as error:
            self.failed.append(error)
            self.delete([path], "left")

    def clear(self, hour: _Hour) -> None:
        """Delete all files of an hour that is too old, and its folder."""
        self.delete((path for path, _ in self.own_files(hour)), "age")
        self._remove_folder(hour.path)

    def shrink(self, hours: list[_Hour], bytes_max: int) -> int:
        """Delete the oldest files until at most `bytes_max` remain; return the remaining bytes."""
        sizes = [(path, size) for hour in hours for path, size in self._oldest_first(hour)]
        total = sum(size for _, size in sizes)
        emptied = set()
        for path, size in sizes:
            if total <= bytes_max:
                break
            self.delete([path], "bytes")
            emptied.add(path.parent)
            total -= size
        for folder in emptied:
            self._remove_folder(folder)
        return total

    def _oldest_first(self, hour: _Hour) -> list[tuple[Path, int]]:
        """Return the hour's files with their sizes, oldest first."""
        files = []
        for path, _ in self.own_files(hour):
            try:
                status = path.stat()
            except OSError:
                continue  # deleted by another process just now
            files.append((status.st_mtime_ns, path, status.st_size))
        return [(path, size) for _, path, size in sorted(files)]

    def _remove_folder(self, hour: Path) -> None:
        """Remove the hour's folder and its date's folder, each only if it is empty."""
        for folder in (hour, hour.parent):
            try:
                os.rmdir(folder)
            except OSError:
                return
