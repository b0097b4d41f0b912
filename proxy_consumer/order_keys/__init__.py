"""What stays in order: the value of a subscription's order key in each message.

Pure. `key_reader` makes the function from delivery bytes to the canonical text of the key; `path_fault`
says at once what is wrong with an order key. docs/order-keys.md is the page for those who write them.
"""
