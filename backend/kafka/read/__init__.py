"""How Kafka is read: streams of native threads, and where queues begin and end."""
