"""A value that a newer release wrote is refused; the store is not marked as damaged, nothing is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddmq_common.errors import NewerFormatError
from ddmq_common.rocks.database import Rocks, RocksOptions, WriteBatch
from delay_service.store import layout
from delay_service.store.copies import MARK_FILE
from delay_service.store.layout import encode_state
from delay_service.store.port import IdKind, IdState
from delay_service.store.salvage import salvage_store


def test_salvaging_includes_the_newest_writes(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    database = Rocks(source, RocksOptions())
    batch = WriteBatch()
    batch.put(layout.ID + bytes(16), b"\x02" + encode_state(IdState(IdKind.PENDING, 1, 2, 0))[1:])
    database.write(batch)
    database.sync()
    database.close()
    before = sorted(path.name for path in source.iterdir())
    target.mkdir()
    with pytest.raises(NewerFormatError):
        salvage_store(source, target, "a damaged block", RocksOptions())
    assert sorted(path.name for path in source.iterdir()) == before
    assert not (source / MARK_FILE).exists()
