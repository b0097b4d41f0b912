"""Order keys: the value in each message by which a subscription keeps messages in order.

Pure functions. `key_reader` builds the function from delivery bytes to the canonical text of the key;
`path_fault` reports an invalid order key. docs/order-keys.md is the page for people who write them.
"""
