"""Read the audit log backwards, page by page: the files of all processes on a data directory.

A position is kept for each process: the file by its inode, because files are renamed, and the bytes of it
that are not read yet. So a page neither loses nor repeats lines while others are written. One page reads at
most SCAN_BYTES_MAX, and may therefore have fewer lines than requested. Blocks, so use it in a native thread.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Container, Iterator
from contextlib import suppress
from heapq import merge
from pathlib import Path
from typing import Any

import msgspec

from ddmq.server.admin.contract.queries import AuditQuery
from ddmq_common.errors import CallerError
from ddmq_common.security.audit import FILES_MAX, REJECTED, AuditLine

COUNT_MAX = 200
SCAN_BYTES_MAX = 1 << 20  # of one page
CHUNK_BYTES = 64 << 10
PROCESSES_MAX = 64  # whose files are read: those written last
_Position = tuple[int, int]  # inode and offset of the end of what is not read yet; (0, 0): all is read
_decode_line = msgspec.json.Decoder(AuditLine).decode


def list_lines(folder: Path, query: AuditQuery) -> dict[str, Any]:
    """Return a page of the lines that match, the newest first, and the cursor of the next one. Raises
    CallerError for another cursor."""
    positions = _decode_positions(query.after)
    readers = [_LineReader(folder, name, positions.get(name)) for name in _list_processes(folder, positions)]
    items: list[dict[str, Any]] = []
    count = min(query.count, COUNT_MAX)
    has_more = False
    scanned = 0
    for _, _, line, reader in merge(*(reader.read_lines(i) for i, reader in enumerate(readers))):
        if len(items) == count or scanned > SCAN_BYTES_MAX:
            has_more = True
            break
        scanned += reader.accept_line()
        if _is_match(line, query):
            items.append(
                {"process": reader.name.removesuffix(f".{REJECTED}"), **msgspec.structs.asdict(line)}
            )
    following = {reader.name: reader.position for reader in readers}
    return {"items": items, "next": _encode_positions(following) if has_more else None}


class _LineReader:
    """Reads the lines of one process backwards. `position`: behind what is not accepted yet."""

    def __init__(self, folder: Path, name: str, position: _Position | None) -> None:
        self.name = name
        self.position: _Position = position or (0, 0)
        self._files = _list_files(folder, name, position)
        self._next: tuple[_Position, int] = self.position, 0

    def read_lines(self, order: int) -> Iterator[tuple[int, int, AuditLine, _LineReader]]:
        """Yield the lines with what they are merged by: the newest first. `order`: of this process."""
        for path, end in self._files:
            for line in self._read_file(path, end):
                yield -line.at_ms, order, line, self

    def accept_line(self) -> int:
        """Go on before the line that was yielded last; return its length in bytes."""
        self.position, size = self._next
        return size

    def _read_file(self, path: Path, end: int | None) -> Iterator[AuditLine]:
        """Yield the lines of a file from its end."""
        with suppress(FileNotFoundError), path.open("rb") as file:
            status = os.fstat(file.fileno())
            rest = b""
            at = status.st_size if end is None else min(end, status.st_size)
            if self.position == (0, 0):
                self.position = status.st_ino, at
            while at > 0:
                size = min(CHUNK_BYTES, at)
                at -= size
                block = os.pread(file.fileno(), size, at) + rest
                start = 0 if at == 0 else block.find(b"\n") + 1 or len(block)
                rest, complete = block[:start], block[start:]
                offset = at + len(block)
                for text in reversed(complete.splitlines(keepends=True)):
                    offset -= len(text)
                    with suppress(msgspec.MsgspecError):  # a crash left it incomplete
                        line = _decode_line(text)
                        self._next = (status.st_ino, offset), len(text)
                        yield line


def _list_processes(folder: Path, positions: dict[str, _Position]) -> list[str]:
    """Return the names of the processes whose files are read."""
    if positions:
        return sorted(positions)
    with suppress(FileNotFoundError):
        changed_ns = {path.stem: path.stat().st_mtime_ns for path in folder.glob("*.jsonl")}
        current = [name for name in changed_ns if not _is_older_file(name, changed_ns)]
        return sorted(sorted(current, key=lambda name: -changed_ns[name])[:PROCESSES_MAX])
    return []


def _is_older_file(name: str, names: Container[str]) -> bool:
    """Return whether the file of this name is an older one of a process: NAME.3 beside NAME."""
    process, _, number = name.rpartition(".")
    return number.isdecimal() and process in names


def _list_files(folder: Path, name: str, position: _Position | None) -> list[tuple[Path, int | None]]:
    """Return the files of a process that are to be read, the newest first, each with where to begin."""
    paths = [folder / f"{name}.jsonl", *(folder / f"{name}.{number}.jsonl" for number in range(1, FILES_MAX))]
    if position is None:
        return [(path, None) for path in paths]
    inode, offset = position
    for index, path in enumerate(paths):
        with suppress(OSError):
            if path.stat().st_ino == inode:
                return [(path, offset), *((older, None) for older in paths[index + 1 :])]
    return []  # it was deleted meanwhile, and so were the older ones


def _is_match(line: AuditLine, query: AuditQuery) -> bool:
    if query.who is not None and line.who != query.who:
        return False
    if query.event is not None and line.event != query.event:
        return False
    texts = (line.who, line.address, line.client, line.action, line.object, line.reason)
    return query.text is None or any(query.text in text for text in texts)


def _encode_positions(positions: dict[str, _Position]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(positions)).decode().rstrip("=")


def _decode_positions(text: str | None) -> dict[str, _Position]:
    if not text:
        return {}
    try:
        payload = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        positions = msgspec.json.decode(payload, type=dict[str, _Position])
        if any("/" in name or "\0" in name or len(name) > 255 for name in positions):
            raise ValueError("not the name of a process")
    except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
        raise CallerError(f"after is {text[:120]!r}; allowed: `next` of an earlier answer") from error
    return dict(list(positions.items())[:PROCESSES_MAX])
