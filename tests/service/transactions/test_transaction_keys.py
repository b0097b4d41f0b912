"""Idempotency keys of messages in transactions, on an engine that knows few keys."""

from __future__ import annotations

from pathlib import Path

from backend.file_log import FileLogOptions, open_log
from backend.records import NewRecord
from ddmq_common.clock import ManualClock
from ddmq_common.metrics.registry import Registry
from ddmq_common.send_identity import IDENTITY, key_identity
from tests.service.transactions.transaction_rig import COMMIT, TransactionRig, body


def test_keys_in_transactions_take_no_space_from_others(tmp_path: Path, clock: ManualClock) -> None:
    """Its shard knows them as long as it is open."""
    options = FileLogOptions(segment_bytes=1 << 20, allocate_bytes=256 << 10, idempotency_keys_max=20)
    rig = TransactionRig(open_log(tmp_path, options, clock=clock, metrics=Registry()), clock)
    own = NewRecord("orders", 0, b"o" * 16, 0, b"x", system={IDENTITY: key_identity(b"orders", b"own", b"x")})
    rig.backend.append([own], clock.monotonic() + 60).wait(60)
    clock.advance(600)
    transaction = rig.begin()
    keyed = [[body(b"x", idempotencyKey=b"%d-%d" % (n, m)) for m in range(10)] for n in range(10)]
    for messages in keyed:
        assert rig.proxy.prepare(transaction, *messages).code == 0
        for message in messages:
            assert rig.proxy.prepare(transaction, message).results[0].duplicate == 1
    (repeated,) = rig.backend.append([own], clock.monotonic() + 60).wait(60)
    assert repeated.first is not None, "it is known for the window"
    assert rig.proxy.prepare(transaction, *keyed[0]).code == 0
    assert len(rig.proxy.end(transaction, COMMIT).results) == 101
    rig.close()
