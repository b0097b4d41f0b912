"""The path of a read, from entries to records, and lookups."""
