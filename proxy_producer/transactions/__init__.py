"""Transactions: half messages, the one commit that ends each, check-back (docs/decisions/0020).

`prepared/` takes messages in at any proxy. `service` owns shards, a `held` each, which reads its queue of
half messages; `deciding` ends them, as `core/` says, in commits that are `gathered`. `ends` and `polls` are
callers that wait for it, `owners` passes their calls on to the proxy that holds the shard. `codec`: the
records.
"""
