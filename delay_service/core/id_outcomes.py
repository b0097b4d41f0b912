"""The outcomes of ids in another installation, as the body of an ID_OUTCOMES command: a msgpack array. Pure.

A row is uuid (16 bytes), kind, when it fired or was cancelled, and until when that is kept (epoch
milliseconds). What waits is not among them: it comes as adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from ddmq_common.delivery import value_of
from ddmq_common.errors import DamagedError
from delay_service.store.port import DelayStore, IdKind, IdState


class IdOutcome(NamedTuple):
    """A delay id, and the state that its commands led to."""

    uuid: bytes
    state: IdState


_ROWS = msgspec.msgpack.Decoder(list[tuple[bytes, int, int, int]])


def encode_id_outcomes(ids: Iterable[IdOutcome]) -> bytes:
    """Encode the body of an ID_OUTCOMES command. It reports the outcomes of ids to a shard."""
    rows = [
        (outcome.uuid, int(outcome.state.kind), outcome.state.at_ms, outcome.state.forget_ms)
        for outcome in ids
    ]
    return msgspec.msgpack.encode(rows)


def decode_id_outcomes(delivery: bytes) -> list[IdOutcome]:
    """Parse the ids and outcomes of an ID_OUTCOMES command from its delivery bytes. Raises DamagedError."""
    try:
        rows = _ROWS.decode(value_of(delivery))
        ids = [IdOutcome(uuid, IdState(IdKind(kind), at, 0, forget)) for uuid, kind, at, forget in rows]
    except (msgspec.MsgspecError, ValueError) as error:
        raise DamagedError(f"a delay command that says what is known does not parse: {error}") from error
    if any(len(outcome.uuid) != 16 or outcome.state.kind is IdKind.PENDING for outcome in ids):
        raise DamagedError("a delay command that says what is known names what is no id, or waits")
    if any(
        not 0 <= at_ms < 1 << 63
        for outcome in ids
        for at_ms in (outcome.state.at_ms, outcome.state.forget_ms)
    ):
        raise DamagedError("a delay command that says what is known names what is no time")
    return ids


def select_new_ids(
    reported: Iterable[IdOutcome], run_states: Mapping[bytes, IdState | None], store: DelayStore, now_ms: int
) -> dict[bytes, IdState]:
    """Return the reported ids that are unexpired and neither in `run_states` nor in the store, with their
    states.
    """
    fresh = {outcome.uuid: outcome.state for outcome in reported if run_states.get(outcome.uuid) is None}
    stored = dict(zip(fresh, store.ids(list(fresh)), strict=True))
    states = {**stored, **run_states}
    return {
        uuid: state for uuid, state in fresh.items() if states.get(uuid) is None and state.forget_ms > now_ms
    }
