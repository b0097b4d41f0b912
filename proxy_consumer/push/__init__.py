"""Push subscriptions: the proxy is their only client and brings every message to a sink itself.

actions/     what a message goes through between its queue and its sink (pure)
sinks/       where it ends: HTTP, Redis, files
verdict.py   how one try of a sink ended
permits.py   how fast a receiver that asked for less is sent to (pure)
runner.py    one subscription: takes messages, keeps their leases, hands results to the PullBuffer
script_workers.py  scripts that may take long, in processes that can be stopped (script_worker.py)
pushers.py   all runners of a proxy: started, changed and stopped with the subscriptions
"""
