"""sendPrepared: messages become half messages of a transaction.

The owner of a transaction's shard admits them, so its bounds hold for what comes to any proxy. `usual` is for
one message as nearly all are, `sends` for everything; `waiting` passes calls on to the proxy that owns the
shard; `admitted`: what is on its way to the log.
"""
