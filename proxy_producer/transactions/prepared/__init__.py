"""sendPrepared: messages become half messages of a transaction.

The owner of a transaction's shard admits them, so its bounds hold for what comes to any proxy. `sends` checks
them and stores them; `waiting` passes calls on to the shard's owner.
"""
