"""Push subscriptions: the proxy is their only client and delivers every message to a sink itself.

actions/     the processing steps of a message between its queue and its sink (pure)
sinks/       the destinations: HTTP, Redis, files
chain.py     the actions of a subscription in order, the last one its sink
verdict.py   the outcomes of one attempt of a sink
runner.py    one subscription: takes messages, extends their leases, passes results to the PullBuffer
script_workers.py  scripts that may take long, in processes that can be stopped (script_worker.py)
pushers.py   all runners of a proxy: started, changed and stopped with the subscriptions
"""
