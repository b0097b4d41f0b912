"""Contents of files into pieces that are parsed and added up at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

PIECE_BYTES = 4 << 20
CUT_BYTES = 16 << 20  # a longer file is several pieces
Contents = Iterable[tuple[str, bytes]]  # path and bytes of a file


class Piece(NamedTuple):
    """Whole files, or a part of one that was cut at the end of a line."""

    files: list[str]
    data: list[bytes]
    follows: bool = False  # the beginning of the file was in the piece before
    goes_on: bool = False

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(map(len, self.data))


def pieces(
    contents: Contents, without: Collection[str] = (), size: int = PIECE_BYTES, uncut: int = CUT_BYTES
) -> Iterator[Piece]:
    """About `size` bytes each, of files but those with these names; a longer file than `uncut` is cut."""
    piece = Piece([], [])
    for file, content in contents:
        if file_name(file) in without:
            continue
        if len(content) > uncut:
            yield from _cut(file, content, size)
            continue
        piece.files.append(file)
        piece.data.append(content)
        if piece.size >= size:
            yield piece
            piece = Piece([], [])
    if piece.files:
        yield piece


def unit_pieces(contents: Iterable[tuple[str, str, bytes]]) -> Iterator[tuple[str, Piece]]:
    """Units, each whole; from (unit, path, bytes) of files, those of a unit one after the other."""
    for unit, files in groupby(contents, key=lambda file: file[0]):
        some = sorted((path, content) for _, path, content in files)
        yield unit, Piece([path for path, _ in some], [content for _, content in some])


def file_name(path: str) -> str:
    """The last part of a path or URL."""
    return path.rpartition("/")[2]


def _cut(file: str, content: bytes, size: int) -> Iterator[Piece]:
    at = 0
    while at < len(content):
        end = content.find(b"\n", at + size) + 1 or len(content)
        yield Piece([file], [content[at:end]], follows=at > 0, goes_on=end < len(content))
        at = end
