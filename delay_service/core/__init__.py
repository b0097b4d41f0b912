"""The decisions of the delay service; no clock, no hub, no backend calls.

`level` and `level_targets` say what a delay level does next and where what is due in it goes. With any due
time `decider` says what a delay command comes to, `due_scans` which messages fire next, `fire_command` what
is appended for each, `occurrences` when a message comes again. They read the store, an argument
(store/port.py), and change it only through the StoreChanges that they return. A read may block on the disk,
and never yields: a decision, what it rests on and its write are one step on the hub, with no cancel in
between. It is bounded: of a run of commands by `ingest_count`, of what is due by a slice (`slice_count`,
`fire_bytes_max`).
"""
