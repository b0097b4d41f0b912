"""Bounds of the memory engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """What it may hold. Appends past `bytes_max` are refused; nothing is thrown away to make room."""

    bytes_max: int = 256 * 1024 * 1024  # delivery bytes of all records
    body_bytes_max: int = 2 * 1024 * 1024
    properties_bytes_max: int = 32 * 1024
    entries_max: int = 10_000  # of topics, settings, progress and lines of members, each
    waits_max: int = 100_000
    writes_max: int = 10_000  # appends and commits taken, not yet settled
    sweep_ms: int = 5  # how exact deadlines are
