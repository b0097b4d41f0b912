"""The name of a queue on the wire, as results of clients carry it."""

from __future__ import annotations

from ddmq_common.delivery import varint


class QueueName:
    """One queue of one group as clients name it, with the bytes that open every compact reply from it.

    `topic` is the topic of the subscription, also for a queue of the group's retry topic.
    """

    __slots__ = ("group", "head", "key", "qid", "topic")

    def __init__(self, group: str, topic: str, qid: str) -> None:
        self.group = group
        self.topic = topic
        self.qid = qid
        self.key = (topic.encode(), qid.encode())  # how results name the queue within its group
        texts = b"".join(b"\x18" + varint(len(text)) + text.encode() for text in (group, topic, qid))
        self.head = b"\x0c\x00\x1c" + texts + b"\x00\x19"


UNNAMED = QueueName("", "", "")
