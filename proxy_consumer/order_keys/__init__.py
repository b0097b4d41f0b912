"""Order keys: the value in each message by which a subscription keeps messages in order.

Pure. `key_reader` makes the function from delivery bytes to the canonical text of the key; `path_fault`
says at once what is wrong with an order key. docs/order-keys.md is the page for those who write them.
"""
