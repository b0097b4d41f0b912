"""Push subscriptions: the proxy is their only client and brings every message to a sink itself.

actions/     what a message goes through between its queue and its sink (pure)
sinks/       where it ends: HTTP, Redis, files
chain.py     the actions of a subscription in order, the last one its sink
verdict.py   how one try of a sink ended
runner.py    one subscription: takes messages, keeps their leases, hands results to the PullBuffer
script_workers.py  scripts that may take long, in processes that can be stopped (script_worker.py)
pushers.py   all runners of a proxy: started, changed and stopped with the subscriptions
"""
