"""Traces of a subscription's messages, and records of the reasons why it does not deliver.

`waits.py` records what held up deliveries (pure); `messages.py` follows the traced messages of each queue.
"""
