"""Opening a log, and the checkpoints that make opening fast."""
