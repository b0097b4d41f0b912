"""The methods of transactions as Apache's own Thrift library writes and reads them; nothing of ours is
imported here."""

from __future__ import annotations

from typing import Any

from thrift.Thrift import TType

from tests.interop import apache_client
from tests.interop.apache_client import Message, Result, Struct

I32, I64, STRUCT, LIST = TType.I32, TType.I64, TType.STRUCT, TType.LIST
TEXT = (TType.STRING, "UTF8")


def _many(kind: type[Struct]) -> tuple[Any, ...]:
    return LIST, (STRUCT, [kind, kind.thrift_spec], False)


class PrepareRequest(Struct):
    fields = {
        1: ("transactionId", *TEXT),
        2: ("producerGroup", *TEXT),
        3: ("messages", *_many(Message)),
        4: ("clientId", *TEXT),
        5: ("timeout", I64),
        6: ("checkAfterMs", I64),
    }


class PrepareResponse(Struct):
    fields = {
        1: ("code", I32),
        2: ("msg", *TEXT),
        3: ("results", *_many(Result)),
        4: ("throughOffset", I64),
    }


class EndTransactionRequest(Struct):
    fields = {
        1: ("transactionId", *TEXT),
        2: ("producerGroup", *TEXT),
        3: ("action", I32),
        4: ("clientId", *TEXT),
        5: ("timeout", I64),
        6: ("throughOffset", I64),
        7: ("check", I32),
        8: ("forwardedBy", *TEXT),
        9: ("messages", I32),
    }


class EndTransactionResponse(Struct):
    fields = {
        1: ("code", I32),
        2: ("msg", *TEXT),
        3: ("outcome", I32),
        4: ("results", *_many(Result)),
    }


class PollChecksRequest(Struct):
    fields = {
        1: ("producerGroup", *TEXT),
        2: ("clientId", *TEXT),
        3: ("countMax", I32),
        4: ("timeout", I64),
        5: ("forwardedBy", *TEXT),
    }


class TransactionCheck(Struct):
    fields = {
        1: ("transactionId", *TEXT),
        2: ("check", I32),
        3: ("messages", *_many(Message)),
        4: ("preparedMs", I64),
        5: ("throughOffset", I64),
    }


class PollChecksResponse(Struct):
    fields = {1: ("code", I32), 2: ("msg", *TEXT), 3: ("checks", *_many(TransactionCheck))}


METHODS = {
    "sendPrepared": (PrepareRequest, PrepareResponse),
    "endTransaction": (EndTransactionRequest, EndTransactionResponse),
    "pollTransactionChecks": (PollChecksRequest, PollChecksResponse),
}
for _name, (_request, _answer) in METHODS.items():
    apache_client.add_method(_name, "request", _request, _answer)
