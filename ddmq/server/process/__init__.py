"""A server process: its parts, signals, logs, limits, and the processes beside it."""
