"""Sends with an identity: the process that owns their shard stores each of them once (decision 29)."""
