"""A message that a worker has, and its end: acknowledged, retried, or moved to the dead letters."""

from __future__ import annotations

import logging
from typing import Any

import dramatiq
from dramatiq.middleware.retries import DEFAULT_MAX_BACKOFF

from ddmq_client.dramatiq.queued_message import ETA_OPTION, QueuedMessage
from ddmq_client.errors import ClientError, InvalidMessageError, LeaseOverError, OptionError
from ddmq_client.producer import Producer
from ddmq_client.received import Message

_log = logging.getLogger("ddmq_client.dramatiq")
# Errors of a server or a connection: another attempt may succeed, unless the message itself is wrong.
TRANSIENT = (ClientError, dramatiq.BrokerError)
FINAL = (InvalidMessageError, OptionError)


class DeliveredMessage(dramatiq.MessageProxy):
    """A Dramatiq message and the lease under which it was delivered.

    `followers` are the messages that middleware enqueued once the actor had ended: its retry, the next step
    of a pipeline, callbacks. They are stored in one commit with the acknowledgement.
    """

    def __init__(self, message: dramatiq.Message[Any], delivery: Message) -> None:
        super().__init__(message)
        self.delivery = delivery
        self.followers: list[QueuedMessage] = []
        self.retry_delay_ms: int | None = None  # of a keyed message that is retried where it is
        self.enqueue_error: Exception | None = None

    @property
    def is_keyed(self) -> bool:
        """Whether the message has an order key, so that its successors wait for it."""
        return bool(self.delivery.key)

    @property
    def actor_error(self) -> BaseException | None:
        """The exception of the actor, until Dramatiq clears it."""
        return self._exception

    def ack(self, producer: Producer) -> None:
        """Acknowledge the message together with its followers, or let it be retried in its place."""
        if self.enqueue_error is not None:
            self._fail(self.enqueue_error)
        elif self.retry_delay_ms is not None:
            if self._send_followers(producer):
                delay_ms = min(self.retry_delay_ms, DEFAULT_MAX_BACKOFF)
                self.delivery.fail(delay_ms, reason=self.actor_error)
        elif self.followers:
            self._ack_with_followers()
        else:
            self.delivery.ack()

    def nack(self, producer: Producer) -> None:
        """Send the followers, then move the message to the dead letters of its queue."""
        if self._send_followers(producer):
            self.delivery.dead_letter(reason=self.actor_error)

    def hand_back(self) -> None:
        """Return a message that no actor has received, so that other workers get it at once."""
        self.delivery.hand_back()

    def _ack_with_followers(self) -> None:
        try:
            with self.delivery.replies() as replies:
                for follower in self.followers:
                    follower.add_to(replies)
        except LeaseOverError as error:
            _log.warning("message %r ended too late, and is delivered again: %s", self.message_id, error)
        except ClientError as error:
            self._fail(error)

    def _send_followers(self, producer: Producer) -> bool:
        try:
            for follower in self.followers:
                follower.send(producer)
        except ClientError as error:
            self._fail(error)
            return False
        return True

    def _fail(self, error: Exception) -> None:
        """Redeliver the message, or make it a dead letter. Messages that middleware enqueued are not
        stored."""
        _log.error(
            "message %r is not acknowledged: what follows it is not stored: %s", self.message_id, error
        )
        if isinstance(error, TRANSIENT) and not isinstance(error, FINAL):
            self.delivery.fail(reason=error)
        else:
            self.delivery.dead_letter(reason=error)


def decode(delivery: Message, queue_name: str) -> DeliveredMessage:
    """Return the Dramatiq message of a delivery; DecodeError if its body is none.

    Its `eta` is over. Deliveries of a keyed message are its retries, for it is retried in its place.
    """
    message: dramatiq.Message[Any] = dramatiq.Message.decode(delivery.body)
    message = message.copy(queue_name=queue_name)
    message.options.pop(ETA_OPTION, None)
    if delivery.key and (delivery.attempt or 1) > 1:
        message.options["retries"] = max(message.options.get("retries", 0), (delivery.attempt or 1) - 1)
    return DeliveredMessage(message, delivery)
