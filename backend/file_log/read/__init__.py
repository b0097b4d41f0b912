"""The way of a read: entries to records, lookups."""
