"""What a read of a queue of delays came to, on an engine whose offsets have gaps and on one without."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from backend.completion import Completion
from backend.records import ReadStatus, StoredRecord
from ddmq_common.errors import DamagedError
from delay_service.due.backend import DueRead


def answered(next_offset: int, *offsets: int, damaged: int = -1) -> Completion[Any]:
    def record(index: int) -> StoredRecord:
        if offsets[index] == damaged:
            raise DamagedError("its checksum is wrong")
        return StoredRecord("t", 0, offsets[index], -1, bytes(16), 1, 1, 0, 0, b"", {})

    status = ReadStatus.DATA if offsets else ReadStatus.NONE
    completion: Completion[Any] = Completion()
    completion.succeed(
        SimpleNamespace(status=status, next_offset=next_offset, offsets=list(offsets), record=record)
    )
    return completion


@pytest.mark.parametrize(
    ("gapless", "read", "missing"),
    [
        (True, answered(5, 2, 3, 4), 0),
        (True, answered(5, 2, 4), 1),
        (True, answered(5, 2, 3, 4, damaged=3), 1),
        (False, answered(5, 2, 4), 0),  # a marker of a transaction lies between
        (False, answered(5), 0),  # and markers alone
        (False, answered(5, 2, 4, damaged=4), 1),
    ],
)
def test_what_is_missing(gapless: bool, read: Completion[Any], missing: int) -> None:
    assert DueRead(2, read, gapless).missing == missing
