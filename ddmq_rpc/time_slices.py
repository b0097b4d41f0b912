"""The processor time of one event loop, shared among the addresses of its clients. Pure.

An address that has used SLICE_S, over all of its connections to one server, accepts included, continues in
the next round of the loop: an event of any other address waits for one slice of it, however many connections
it has. Those of its connections that have to wait are served in the order in which they came.

A request cannot be cut short. So an address whose requests are costly (longer than COSTLY_S, and not
explained by their bytes) also rests, REST_FACTOR times as long as they took, while other addresses are
about: they then find the server free most of the time. Alone, an address has all of it.

An answer may take more than the loop's own work: a send waits for the thread that writes the log, which has
to get the interpreter, and gets it for certain only when the loop has nothing to do. So an address that used
its slice also continues only when no light address waits for an answer, or GIVE_WAY_S later. A light address
uses less than LIGHT_CORE_SHARE (one slice may deceive, two do not). One whose answers take longer than
PROMPT_S is not waited for: a pull may be held.

Slices are measured with a clock that is cheap to read. It also runs while another process has the core, so it
makes no address rest: an address that looks costly has its processor time measured for its next
MEASURED_EVENTS. The length of a rest follows this clock, because that long the others waited. It is at most
STRETCH_MAX times the processor time, or a process that was held up for a second would rest for four.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from ddmq_common.clock import NEVER

SLICE_S = 0.0005
COSTLY_S = 0.001
COSTLY_S_PER_BYTE = 10e-9  # of requests that decode: long ones may take longer
REST_FACTOR = 4
STRETCH_MAX = 8  # of its processor time at most a request counts as having taken
ACTIVE_S = 1.0  # how long an address counts as being about
LIGHT_CORE_SHARE = 1 / 40  # of the core
GIVE_WAY_S = 0.002
PROMPT_S = 0.02
MEASURED_EVENTS = 64
NOT_MEASURED = -1.0


class Member(Protocol):
    """One connection of a client address, as the time slices see it."""

    busy: int

    def resume_work(self) -> None:
        """Resume the waiting work, because the connection's address has a time slice again."""

    def close(self) -> None: ...


class AddressShare:
    """A client address's use of the server's processor time.

    `silent`: connections without a frame so far, oldest first.
    """

    __slots__ = (
        "address", "began", "exhausted", "light", "members", "prompt", "rest_until", "silent", "suspect",
        "used", "used_little", "waiting",
    )  # fmt: skip

    def __init__(self, address: str, now: float) -> None:
        self.address = address
        self.began = now  # this slice
        self.light = self.prompt = self.used_little = True
        self.members: dict[Member, None] = {}
        self.silent: dict[Member, None] = {}
        self.waiting: deque[Member] = deque()
        self.used = 0.0  # seconds of this slice
        self.exhausted = False
        self.rest_until = 0.0
        self.suspect = 0  # events whose processor time is still to be measured


class Shared:
    """The clients' use of processor time over all servers of one event loop."""

    __slots__ = ("awaiting", "changed_at", "latest", "latest_call_at", "slices")

    def __init__(self) -> None:
        self.slices: list[TimeSlices] = []
        self.latest: AddressShare | None = None  # who was served last
        self.changed_at = -ACTIVE_S  # when that was somebody else
        self.awaiting: set[Member] = set()  # to whose calls others give way
        self.latest_call_at = 0.0  # when the latest of these calls came

    def one_address(self) -> bool:
        """Return whether all clients have the same address."""
        addresses = {address for slices in self.slices for address in islice(slices.shares, 2)}
        return len(addresses) < 2


class TimeSlices:
    """Divides the processor time of one server among the client addresses.

    `arm(seconds)`: schedules `run_round`; 0 means the next round of the event loop. `clock`: seconds from
    any start. `rested()`: called when an address must rest. `shared`: the state shared with other servers.
    """

    __slots__ = ("_arm", "_clock", "_exhausted", "_rested", "_round_at", "_shared", "bytes", "shares")

    def __init__(
        self,
        clock: Callable[[], float],
        arm: Callable[[float], None],
        rested: Callable[[], None],
        shared: Shared | None = None,
    ) -> None:
        self._clock = clock
        self._arm = arm
        self._rested = rested
        self._round_at = NEVER
        self._exhausted: dict[AddressShare, None] = {}
        self.shares: dict[str, AddressShare] = {}
        self._shared = Shared() if shared is None else shared
        self._shared.slices.append(self)
        self.bytes = 0  # of requests that decoded, in the event under way

    def join(self, address: str, member: Member) -> AddressShare:
        """Add a connection to its address; return the state of the address."""
        share = self.shares.get(address)
        if share is None:
            share = self.shares[address] = AddressShare(address, self._clock())
        share.members[member] = share.silent[member] = None
        return share

    def leave(self, share: AddressShare, member: Member) -> None:
        """Remove a closed connection.

        The time that its address has used stays charged until its slice ends.
        """
        share.members.pop(member, None)
        share.silent.pop(member, None)
        self._shared.awaiting.discard(member)
        if not share.members and not share.exhausted:
            self.shares.pop(share.address, None)

    def close(self) -> None:
        """Remove this server from the shared state."""
        if self in self._shared.slices:
            self._shared.slices.remove(self)

    def begin_event(self, share: AddressShare, now: float) -> None:
        """Record that the event loop starts to handle an event of a connection of this address."""
        self.bytes = 0
        shared = self._shared
        if shared.latest is not share:
            shared.latest, shared.changed_at = share, now

    def record_accept(self, address: str, started: float, now: float) -> None:
        """Charge the time of an accept to the client's address. That address is known only after the accept.

        If the address has used up its slice, the time shortens its next one.
        """
        share = self.shares.get(address)
        if share is None:
            return
        self.begin_event(share, started)
        share.used += now - started
        if share.used > SLICE_S and not share.exhausted:
            self.end_slice(share, now - started, NOT_MEASURED)

    def record_call(self, share: AddressShare, member: Member) -> float:
        """Record a call; return its time, or NOT_MEASURED.

        After a time, `record_answer` or `leave` must follow.
        """
        if not share.light:
            return NOT_MEASURED
        now = self._clock()
        if share.prompt:
            self._shared.awaiting.add(member)
            self._shared.latest_call_at = now
        return now

    def record_answer(self, share: AddressShare, member: Member, called_at: float) -> None:
        """Record that a call has been answered. `called_at`: the result of `record_call`."""
        now, shared = self._clock(), self._shared
        share.prompt = now - called_at < PROMPT_S
        if member in shared.awaiting:
            shared.awaiting.remove(member)
            if not shared.awaiting:
                for slices in shared.slices:
                    if slices._exhausted:
                        slices._round_not_after(now)

    def end_slice(self, share: AddressShare, seconds: float, cpu: float) -> None:
        """End the slice that an event has used up. `seconds`: its duration.

        `cpu`: its CPU seconds, or NOT_MEASURED.
        """
        now = self._clock()
        used_little = share.used < (now - share.began) * LIGHT_CORE_SHARE
        share.light, share.used_little = used_little or share.used_little, used_little
        share.used = 0.0
        share.began = now
        if self._shared.one_address():
            return
        allowed = COSTLY_S + self.bytes * COSTLY_S_PER_BYTE
        if seconds > allowed:
            share.suspect = MEASURED_EVENTS
        if cpu > allowed and now - self._shared.changed_at < ACTIVE_S:
            waited = min(seconds, cpu * STRETCH_MAX)
            share.rest_until = max(share.rest_until, now) + waited * REST_FACTOR
            self._rested()
        share.exhausted = True
        self._exhausted[share] = None
        self._round_not_after(now)

    def wait(self, share: AddressShare, member: Member) -> None:
        """Queue a connection with work until its address has a slice again."""
        share.waiting.append(member)

    def run_round(self) -> None:
        """Give a new slice to every address that neither rests nor gives way to others."""
        self._round_at = NEVER
        now = self._clock()
        is_unblocked = self._is_unblocked(now)
        for share in list(self._exhausted):
            if self._next_at(share, is_unblocked) <= now:
                self._serve_share(share)
        if self._exhausted:
            is_unblocked = self._is_unblocked(now)
            self._round_not_after(min(self._next_at(share, is_unblocked) for share in self._exhausted))

    def _is_unblocked(self, now: float) -> bool:
        """Return whether no call is waiting for an answer to which other addresses give way."""
        shared = self._shared
        if now - shared.latest_call_at >= GIVE_WAY_S:
            shared.awaiting.clear()
        return not shared.awaiting

    def _next_at(self, share: AddressShare, is_unblocked: bool) -> float:
        if is_unblocked or share.light:
            return share.rest_until
        return max(share.rest_until, share.began + GIVE_WAY_S)

    def _serve_share(self, share: AddressShare) -> None:
        share.exhausted = False
        while share.waiting and not share.exhausted:
            share.waiting.popleft().resume_work()
        if share.exhausted:
            return
        del self._exhausted[share]
        share.used = 0.0  # or who is first in every round would have what is left of each slice
        if not share.members:
            self.shares.pop(share.address, None)

    def _round_not_after(self, at: float) -> None:
        if at < self._round_at:
            self._round_at = at
            self._arm(max(0.0, at - self._clock()))

    # --- capacity for one more connection

    def silent_of(self, share: AddressShare) -> Member | None:
        """Return the oldest connection of an address that has not sent a frame yet, or None."""
        return next(iter(share.silent), None)

    def least_missed(self, address: str) -> Member | None:
        """Return the connection to close for a new one of `address`, or None if there is none.

        Among the addresses with at least as many connections: the oldest silent one of the address with most
        silent ones; else the oldest idle one of the address with most connections, if that has more than
        `address`.
        """
        own = self.shares.get(address)
        connections = 0 if own is None else len(own.members)
        others = [share for share in self.shares.values() if len(share.members) >= connections]
        silent = self.silent_of(max(others, key=lambda share: len(share.silent)))
        largest = max(others, key=lambda share: len(share.members))
        if silent is not None or len(largest.members) <= connections + 1:
            return silent
        return next((member for member in largest.members if not member.busy), None)
