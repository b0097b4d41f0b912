"""The two ways of a message out of a subscription that could not finish it: retry path and dead letters.

The core only says that a job is spent. Here it is read once more and moved: an unordered one with steps
left goes to SCHEDULE_TOPIC and from there to the group's retry topic, everything else to `%DLQ%group`.
Each move and the finish of what was moved are one commit where the engine is atomic; elsewhere the copy is
durable first. Until that is done the message stays unfinished and is delivered to nobody.

    publisher.py      where a spent message goes next, and the commit that moves it, a few at a time
    headers.py        what travels with a retried message (pure)
    retry_queues.py   which queue of the retry topic belongs to which topic of the group

What a dead letter says of itself, and how it becomes a message again, is backend/internal_topics.py: the
delay service makes some, too.
"""
