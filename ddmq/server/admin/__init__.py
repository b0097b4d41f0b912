"""The answers of the admin port: topics, groups, offsets, keys, messages, dead letters, metrics."""
