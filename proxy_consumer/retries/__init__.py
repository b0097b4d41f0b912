"""The two ways in which a message leaves a subscription that could not finish it: retry path and dead
letters.

The core only marks a job as spent. The retry publisher reads it once more and moves it: an unordered message
with retry steps left goes to SCHEDULE_TOPIC and from there to the group's retry topic, every other one to
`%DLQ%group`. Each copy and the finish of its original are one commit if the engine is atomic; otherwise the
copy is made durable first. Until then the message stays unfinished and is not delivered.

    publisher.py      chooses the next topic of a spent message, and commits the moves, a few at a time
    headers.py        the headers of a retried message (pure)
    retry_queues.py   maps each topic of the group to its queue of the retry topic

The headers of dead letters, and how they are resent, are in backend/internal_topics.py, because the delay
service creates dead letters, too.
"""
