"""The compacted topic of waiting messages: a store is a cache of it, restored from it and following it."""
