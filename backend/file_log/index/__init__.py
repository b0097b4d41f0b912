"""Lookup by key, by message id and by time: one file set per commit-log segment.

A view that can be rebuilt from the log: written without a sync, and the log decides where they differ. A hash
only finds candidates; the caller reads the record and compares. docs/formats-index.md describes every byte.
"""
