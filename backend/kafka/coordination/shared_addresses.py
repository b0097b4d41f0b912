"""Finds processes that state the same address: results for the queues of one would never reach it. Pure.

Consumer proxies pass results on to the address that the holder of a queue stated when it joined. If two
machines listen on loopback, both state 127.0.0.1, and each passes such results on to itself. The same holds
for producer proxies and the sends that they pass on to the owner of a shard (backend/kafka/sends).

Two processes may also state one address for a moment, when one is replaced by another, so an address counts
only after it was found again CONFIRM_S later.
"""

from __future__ import annotations

import logging

from backend.kafka.coordination.table import TableState

log = logging.getLogger(__name__)
CONFIRM_S = 10.0  # longer than it takes until a killed process is declared dead
TEXT = (
    "another process also states the address %s: results of its queues, and sends that it has to store,"
    " cannot be passed on to it; set advertise in proxy_consumer.yaml to HOST:PORT at which other machines"
    " reach this one, and listen there"
)


def find_shared_addresses(table: TableState) -> dict[str, set[str]]:
    """Return each address that several processes state in the same group and topic, with their names."""
    processes: dict[tuple[str, str, str], set[str]] = {}
    for (process, _), member in table.members.items():
        if member.name != member.process:  # else it has no address
            address = member.name.partition("/")[0]  # a token may follow
            processes.setdefault((member.group, member.topic, address), set()).add(process)
    shared: dict[str, set[str]] = {}
    for (_, _, address), names in processes.items():
        if len(names) > 1:
            shared.setdefault(address, set()).update(names)
    return shared


class SharedAddresses:
    """Keeps the addresses that several processes state, and logs an error once for one of this process."""

    def __init__(self) -> None:
        self._candidates: dict[str, set[str]] = {}
        self._logged: set[str] = set()
        self._next_at = 0.0
        self.confirmed: tuple[str, ...] = ()

    def check(self, table: TableState, own: str, now: float) -> None:
        """Compare the addresses in the table, at most once in CONFIRM_S. `own`: this process's name."""
        if now < self._next_at:
            return
        self._next_at = now + CONFIRM_S
        before, self._candidates = self._candidates, find_shared_addresses(table)
        confirmed = {
            address: names
            for address, names in self._candidates.items()
            if len(names & before.get(address, set())) > 1
        }
        self.confirmed = tuple(sorted(confirmed))
        for address, names in confirmed.items():
            if own in names and address not in self._logged:
                self._logged.add(address)
                log.error(TEXT, address)
        self._logged &= confirmed.keys()

    @property
    def health_warning(self) -> str:
        """Return the reported addresses in one line, or an empty string."""
        if not self.confirmed:
            return ""
        return f"several processes state the address {', '.join(self.confirmed)}: set advertise on each"
