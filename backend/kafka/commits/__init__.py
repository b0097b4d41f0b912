"""Commits: what is collected while the last batch is in flight goes together, one batch at a time."""
