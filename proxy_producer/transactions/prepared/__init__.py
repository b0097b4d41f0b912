"""sendPrepared: messages become half messages of a transaction.

The owner of a transaction's shard admits them, so its bounds hold for what comes to any proxy. `sends` checks
and stores them; `admitted` holds their room in the shard; `waiting` passes calls on to the shard's owner.
"""
