"""Opening the log, and the checkpoints that make it quick."""
