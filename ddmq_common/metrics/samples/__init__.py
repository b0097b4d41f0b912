"""Samples: what a process's metrics gained every few seconds, as JSON lines in small files.

`deltas` thinks (what is new since the last file that was really written), `line` and `names` are the format
(docs/formats-samples.md). All three are pure: time, ids and files are arguments. The shell that writes is
ddmq/server/samples/; the readers are metrics_job/ and whoever likes JSON.
"""
