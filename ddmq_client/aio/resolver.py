"""Names to addresses, by the event loop's resolver."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from ddmq_client.core.addresses import ADDRESSES_MAX, ProxyAddress, from_info


async def resolve(
    addresses: Iterable[ProxyAddress], known: dict[ProxyAddress, list[ProxyAddress]]
) -> list[ProxyAddress]:
    """Every address behind these; a name that does not resolve now keeps what it had in `known` (updated)."""
    loop = asyncio.get_running_loop()
    found: dict[ProxyAddress, None] = {}
    for address in addresses:
        with suppress(OSError, UnicodeError):
            known[address] = from_info(await loop.getaddrinfo(*address, type=1))
        found.update(dict.fromkeys(known.get(address, ())))
    return list(found)[:ADDRESSES_MAX]
