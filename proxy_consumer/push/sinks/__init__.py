"""Sinks of push subscriptions: HTTP, Redis, files.

http_request.py  the request of AsyncHttp, from a job to bytes (pure)
http_answer.py   what an answer means (pure)
receiving.py     what a receiver sends, under bounds of bytes, time and pieces
http_reading.py  one HTTP answer to its end
http_pool.py     connections that are kept, on gevent's sockets
http.py          AsyncHttp: targets, tries, back-off
redis_protocol.py  commands and their replies
redis_pool.py    connections to Redis, on gevent's sockets
redis.py         Redis: the commands of a message
files_folder.py  the folder of File: how much is in it, files nobody else writes
file.py          File: lines, synced together before any of them counts as done
"""
