"""Pages of the audit log: each line once and the newest first, also while files are renamed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddmq.server.admin.auth import audit
from ddmq.server.admin.auth.audit import list_lines
from ddmq.server.admin.contract.queries import AuditQuery
from ddmq_common.errors import CallerError
from ddmq_common.security.audit import AuditFiles, AuditLine

LINES = 40


def write_line(files: AuditFiles, at_ms: int, **fields: Any) -> None:
    files.append(msgspec.json.encode(AuditLine(at_ms, "change", **fields)) + b"\n")


def read_all(folder: Path, **query: Any) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        page = list_lines(folder, AuditQuery(after=after, **query))
        lines += page["items"]
        after = page["next"]
        if after is None:
            return lines


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two processes that wrote in turns, into several files each."""
    writers = [AuditFiles(tmp_path, f"{name}@10.0.0.5", bytes_max=500) for name in ("producer", "consumer")]
    for number in range(LINES):
        write_line(writers[number % 2], number, who="ops", object=f"topic={number}")
    return tmp_path


@pytest.mark.parametrize("count", [1, 3, 200])
@pytest.mark.parametrize("chunk", [7, 64 << 10])
def test_each_line_is_read_once_and_the_newest_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch, count: int, chunk: int
) -> None:
    monkeypatch.setattr(audit, "CHUNK_BYTES", chunk)
    assert [line["at_ms"] for line in read_all(folder, count=count)] == list(reversed(range(LINES)))


def test_a_page_that_has_read_enough_ends_early_and_the_next_one_continues(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "SCAN_BYTES_MAX", 300)
    first = list_lines(folder, AuditQuery(text="topic=1"))
    assert len(first["items"]) < len(read_all(folder, text="topic=1")) == 11
    assert first["next"] is not None


def test_lines_that_are_written_between_two_pages_do_not_move_the_second_one(folder: Path) -> None:
    first = list_lines(folder, AuditQuery(count=5))
    writer = AuditFiles(folder, "producer@10.0.0.5", bytes_max=500)
    for number in range(8):  # renames the files that the cursor is about
        write_line(writer, 1_000 + number)
    second = list_lines(folder, AuditQuery(count=5, after=first["next"]))
    assert [line["at_ms"] for line in second["items"]] == list(range(LINES - 6, LINES - 11, -1))


def test_lines_are_selected_by_identity_event_and_text(folder: Path) -> None:
    writer = AuditFiles(folder, "producer@10.0.0.5.rejected", bytes_max=500)
    writer.append(msgspec.json.encode(AuditLine(99, "rejected", "app", reason="lacks `send orders`")) + b"\n")
    (line,) = read_all(folder, who="app")
    assert (line["process"], line["event"], line["count"]) == ("producer@10.0.0.5", "rejected", 1)
    assert read_all(folder, event="rejected") == read_all(folder, text="send orders") == [line]
    assert read_all(folder, who="nobody") == []


def test_an_incomplete_line_is_left_out(folder: Path) -> None:
    with (folder / "consumer@10.0.0.5.jsonl").open("ab") as file:
        file.write(b'{"at_ms": 7, "ev')
    assert len(read_all(folder)) == LINES


@pytest.mark.parametrize("after", ["x", "%", "W10", "eyIuLi9ldGMvcGFzc3dkIjpbMSwxXX0"])
def test_a_foreign_cursor_is_rejected(folder: Path, after: str) -> None:
    with pytest.raises(CallerError, match="allowed: `next` of an earlier answer"):
        list_lines(folder, AuditQuery(after=after))


def test_no_folder_is_no_line(tmp_path: Path) -> None:
    assert list_lines(tmp_path / "absent", AuditQuery()) == {"items": [], "next": None}
