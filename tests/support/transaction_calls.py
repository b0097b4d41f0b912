"""A producer's transaction calls over one connection, without the client library."""

from __future__ import annotations

import itertools
import socket
import time
from typing import Any

from ddmq_client.idl import producer
from ddmq_rpc.client_side import decode_reply, encode_call
from ddmq_rpc.codec import structs
from ddmq_rpc.envelope import Frames

S = structs(producer)
COMMIT, ROLLBACK, NOT_KNOWN_YET = 8, 12, 0
_NUMBERS = itertools.count(1)


def new_id(salt: int = 0) -> str:
    """32 digits of a UUID of version 7."""
    return f"{time.time_ns() // 1_000_000:012x}7{salt & 0xFFF:03x}8{next(_NUMBERS):015x}"


class TransactionCalls:
    """One connection to a producer proxy; OSError and EOFError when it goes."""

    def __init__(self, port: int, timeout_s: float = 60.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._frames = Frames(8 << 20)

    def close(self) -> None:
        self._socket.close()

    def call(self, method: str, **arguments: Any) -> Any:
        self._socket.sendall(encode_call(producer, "ProducerService", method, **arguments))
        frame = None
        while frame is None:
            data = self._socket.recv(1 << 16)
            if not data:
                raise EOFError("the proxy closed the connection")
            frame = self._frames.feed_bytes(data)
        return decode_reply(producer, "ProducerService", frame).result.success

    def prepare(self, transaction: str, *messages: Any, group: str = "bank", **fields: Any) -> Any:
        request = S.PrepareRequest(
            transactionId=transaction, producerGroup=group, messages=list(messages), clientId="test", **fields
        )
        return self.call("sendPrepared", request=request)

    def prepare_when_owned(self, transaction: str, *messages: Any, group: str = "bank") -> Any:
        """Sent again as long as the transaction's shard has no owner: the first one makes the shards."""
        deadline = time.monotonic() + 60
        while True:
            answer = self.prepare(transaction, *messages, group=group)
            if answer.code != 15 or time.monotonic() > deadline:
                return answer

    def end_once(self, transaction: str, action: int, group: str = "bank", **fields: Any) -> Any:
        request = S.EndTransactionRequest(
            transactionId=transaction, producerGroup=group, action=action, clientId="test", **fields
        )
        return self.call("endTransaction", request=request)

    def end(self, transaction: str, action: int, group: str = "bank", **fields: Any) -> Any:
        """Asked again as long as it is to be."""
        deadline = time.monotonic() + 60
        while True:
            answer = self.end_once(transaction, action, group, **fields)
            if answer.code not in (12, 15) or time.monotonic() > deadline:
                return answer
            time.sleep(0.05)

    def poll(self, group: str = "bank", count: int = 16, timeout_ms: int = 0) -> Any:
        request = S.PollChecksRequest(
            producerGroup=group, clientId="test", countMax=count, timeout=timeout_ms
        )
        return self.call("pollTransactionChecks", request=request)


def message(topic: str, body: bytes, **fields: Any) -> Any:
    return S.Message(topic=topic, body=body, partitionId=fields.pop("partitionId", -2), hashId=0, **fields)
