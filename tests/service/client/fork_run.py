"""Run in a process of its own: what was used before a fork, used again after it."""

import os
import sys

from ddmq_client import ClientError, Consumer, FetchConsumer, OutgoingMessage, Producer


def refused(call: object, *args: object) -> bool:
    try:
        call(*args)  # type: ignore[operator]
    except ClientError as error:
        return "forked" in str(error)
    return False


def main(address: str) -> None:
    message = OutgoingMessage("t", b"x")
    with Producer(address, producer_group="bank") as producer, Consumer(address, "g", "t") as consumer:
        fetching = FetchConsumer(address, "g")
        producer.send_message(message)
        unused = Producer(address)
        fetching.fetch(linger_ms=20)
        (got,) = consumer.pull(1, 20_000)
        tx = producer.transaction()
        child = os.fork()
        if child == 0:
            tried = [(producer.send_message, message), (producer.send_async, message), (producer.flush,)]
            tried += [(tx.send, "t", b"x"), (producer.transaction,)]
            calls = [*tried, (consumer.pull,), (fetching.fetch,), (fetching.ack,)]
            accepted = [call for call, *args in calls if not refused(call, *args)]
            producer.close()
            consumer.stop()
            fetching.close()
            with Producer(address) as fresh:
                fresh.send_message(message)
            unused.send_message(message)
            os._exit(len(accepted))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        got.ack()
        assert producer.send_message(message).offset == 3, "its connection is as it was"
        unused.send_message(message)
        unused.close()
        assert fetching.ack()
        fetching.close()
    assert consumer.counts().pull_errors == 0


main(sys.argv[1])
