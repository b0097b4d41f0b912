"""What the admin port answers: topics, groups, offsets, keys, messages, dead letters, metrics."""
