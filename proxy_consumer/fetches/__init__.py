"""Low-level fetch and ack, and broadcasting: consumers that keep their own offsets.

group.py divides the queues among the consumers; owned_topic.py knows where each starts and what an ack
finishes; fetch.py reads, waits and replies. Nothing is leased here and nothing is retried. docs/fetching.md
describes what clients see.
"""
