"""Transactions: half messages, the one commit that ends each, check-back (docs/decisions/0020).

`prepared/` accepts messages at any proxy. `service` owns shards: a `claimed_shard` reads its queue of half
messages, `deciding` ends transactions by the rules of `core/`, and `combined_commits` stores the decisions.
`ends` and `polls` are callers that wait for a shard; `owners` forwards their calls to the proxy that owns it.
`codec`: the records.
"""
