"""Reports of a traced subscription about its messages, and notes about why it does not deliver.

`waits.py` keeps what held up deliveries (pure); `messages.py` follows the traced messages of each queue.
"""
