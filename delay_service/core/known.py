"""What became of ids in another installation, as the body of a KNOWN command: a msgpack array of rows. Pure.

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


class KnownId(NamedTuple):
    """An id and what became of it."""

    uuid: bytes
    state: IdState


_ROWS = msgspec.msgpack.Decoder(list[tuple[bytes, int, int, int]])


def encode_known(ids: Iterable[KnownId]) -> bytes:
    """The body of a command."""
    rows = [(each.uuid, int(each.state.kind), each.state.at_ms, each.state.forget_ms) for each in ids]
    return msgspec.msgpack.encode(rows)


def known_in(delivery: bytes) -> list[KnownId]:
    """The other way, from delivery bytes. Raises DamagedError."""
    try:
        rows = _ROWS.decode(value_of(delivery))
        found = [KnownId(uuid, IdState(IdKind(kind), at, 0, forget)) for uuid, kind, at, forget in rows]
    except (msgspec.MsgspecError, ValueError) as error:
        raise DamagedError(f"a delay command that says what is known does not parse: {error}") from error
    if any(len(each.uuid) != 16 or each.state.kind is IdKind.PENDING for each in found):
        raise DamagedError("a delay command that says what is known names what is no id, or waits")
    if any(not 0 <= at_ms < 1 << 63 for each in found for at_ms in (each.state.at_ms, each.state.forget_ms)):
        raise DamagedError("a delay command that says what is known names what is no time")
    return found


def learn(
    told: Iterable[KnownId], known: Mapping[bytes, IdState | None], store: DelayStore, now_ms: int
) -> dict[bytes, IdState]:
    """What to keep of `told`: ids of which neither `known` nor the store says anything, not yet forgotten."""
    fresh = {each.uuid: each.state for each in told if known.get(each.uuid) is None}
    stored = dict(zip(fresh, store.ids(list(fresh)), strict=True))
    asked = {**stored, **known}
    return {
        uuid: state for uuid, state in fresh.items() if asked.get(uuid) is None and state.forget_ms > now_ms
    }
