"""Low-level fetch and ack, and broadcasting: consumers that keep their own offsets.

`core/` decides (who has which queue, where to start, what an ack finishes); the shell joins the group's
topics, reads, waits and answers. Nothing is leased here and nothing is retried. docs/fetching.md tells
what clients see.
"""
