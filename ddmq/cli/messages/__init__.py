"""Commands that send, pull, delay messages; each is a client of a proxy."""
