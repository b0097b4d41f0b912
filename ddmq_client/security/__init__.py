"""The secured connections of the client library."""
