"""Every process writes what its metrics gained into small files (docs/formats-samples.md).

`writer` is the greenlet that takes a sample every few seconds; `folder` does the blocking work on files, in a
native thread: writing, merging the files of past hours, deleting what is too old or too much.
"""
