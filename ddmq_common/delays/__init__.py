"""A delayed message on its way from the producer proxy to the delay service."""
