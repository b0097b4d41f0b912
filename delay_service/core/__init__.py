"""What the delay service decides; no clock, no hub, no backend calls.

`intake` takes orders, `lanes` says which messages fire next, `outlets` what is appended for each, `kinds`
when a message comes again. They ask the store (a port, its calls never yield) and change it only through
the Changes they return, so a decision and its write are one step on the hub.
"""
