"""Native threads with librdkafka's clients, and the bridge from them to the hub."""
