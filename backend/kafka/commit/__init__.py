"""Commits: what is gathered while the last batch is under way goes together, one batch at a time."""
