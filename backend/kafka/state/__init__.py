"""Settings and progress as this process has followed them in the system topics."""
