"""Addresses of clients: which of them count as one client, and which are on this machine."""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network, ip_address


def address_of(host: str) -> str:
    """Return the address that counts as one client: an IPv4 address, or an IPv6 address's /64 network."""
    if ":" not in host:
        return host
    ip = IPv6Address(host.partition("%")[0])
    mapped = ip.ipv4_mapped
    return str(mapped) if mapped is not None else str(IPv6Network((int(ip) >> 64 << 64, 64)))


def is_loopback(host: str) -> bool:
    """Return whether an IP address is one of this machine alone."""
    ip = ip_address(host.partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return (mapped or ip).is_loopback
