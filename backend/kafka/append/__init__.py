"""How records are appended to Kafka: lots of a partition, and the producer whose reports the hub takes."""
