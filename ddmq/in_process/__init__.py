"""A whole server inside the caller's process: no socket, thread or file, and a clock that the caller moves.

`loop.py` runs callbacks and timers by hand, `server.py` puts the parts together over the memory engine,
`calls.py` takes a client's frames and gives back the answers, `views.py` shows what is in it. The test kit of
the client library (ddmq_client.testing) is made of it.
"""
