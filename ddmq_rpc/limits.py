"""The bounds of one RPC server: everything that a client could make grow, and what happens there."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ddmq_client.idl.codes import FRAME_BYTES_MAX

_MAY_BE_0 = ("idle_s", "connections_max_per_address")


@dataclass(frozen=True, slots=True)
class RpcLimits:
    """What a server takes. Raises ValueError naming the limit and what is allowed.

    At a bound: a longer frame, a slow frame, an unread answer close that connection; for a connection above
    the bound another one gives way, or it is accepted and closed; at the byte bounds the server stops reading
    (back-pressure).
    """

    frame_bytes_max: int = FRAME_BYTES_MAX
    connections_max: int = 10_000
    connections_max_per_address: int = 0  # of one client address; 0 = no bound of its own
    in_flight_bytes_max: int = 256 << 20  # frames of calls that are not answered yet
    partial_bytes_max: int = 64 << 20  # frames that have not arrived whole
    unsent_bytes_max: int = 256 << 20  # answers that clients do not read; the oldest connection is closed
    frame_read_s: float = 10.0  # from the first byte of a frame to its last
    answer_write_s: float = 10.0  # for the client to read an answer
    idle_s: float = 0.0  # no request for that long closes the connection; 0 = never
    container_elements_max: int = 16_384  # elements of one list or map of a request
    decode_cpu_s: float = 0.05  # processor time that one request's arguments may take to decode
    frames_per_wakeup: int = 16  # of one connection, before others get their turn
    oneway_open_max: int = 256  # unanswered oneway calls of one connection
    accepts_per_wakeup: int = 64

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            lowest = 0 if field.name in _MAY_BE_0 else 1e-3 if field.name.endswith("_s") else 1
            if not value >= lowest:
                raise ValueError(f"{field.name} is {value}; allowed: at least {lowest:g}")
        if self.frame_bytes_max >= 1 << 31:
            raise ValueError(f"frame_bytes_max is {self.frame_bytes_max}; allowed: at most 2,147,483,647")
