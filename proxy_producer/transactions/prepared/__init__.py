"""sendPrepared: messages become half messages of a transaction.

`usual` for one message as nearly all are, `sends` for everything; `tally`: how much went through this proxy.
"""
