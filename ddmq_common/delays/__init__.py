"""What a delayed message is on its way from the producer proxy to the delay service."""
