"""What waits, outside of the store: the compacted topic that a store is a cache of, restored and followed."""
