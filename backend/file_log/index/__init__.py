"""Lookup by key, by message id and by time: one file set per commit-log segment.

A view that can be rebuilt from the log: written without a sync, never believed over the log. Hashes
say "perhaps"; the caller reads the record and compares. Every byte is described in docs/formats-index.md.
"""
