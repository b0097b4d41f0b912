"""The way of a write: requests, group commits, the thread that writes, entries to their files."""
