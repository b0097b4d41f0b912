"""The memory engine: the model that every other engine is compared with, and the twin for tests."""

from backend.memory.backend import MemoryBackend, MemoryOptions

__all__ = ["MemoryBackend", "MemoryOptions"]
