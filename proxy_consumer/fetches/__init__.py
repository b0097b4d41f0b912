"""Low-level fetch and ack, and broadcasting: consumers that keep their own offsets.

group.py says who has which queue, holding.py where to start and what an ack finishes; fetch.py reads, waits
and answers. Nothing is leased here and nothing is retried. docs/fetching.md tells what clients see.
"""
