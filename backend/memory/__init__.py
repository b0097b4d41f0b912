"""The memory engine: the model that every other engine is compared with, and an engine for tests."""

from backend.memory.backend import MemoryBackend, MemoryOptions

__all__ = ["MemoryBackend", "MemoryOptions"]
