"""`reply` as Apache's own Thrift library writes and reads it; nothing of ours is imported here."""

from __future__ import annotations

from typing import Any

from thrift.Thrift import TType

from tests.interop import apache_client
from tests.interop.apache_client import Context, Struct

I32, I64, BOOL, STRUCT, LIST, MAP = TType.I32, TType.I64, TType.BOOL, TType.STRUCT, TType.LIST, TType.MAP
TEXT = (TType.STRING, "UTF8")


def _many(kind: type[Struct]) -> tuple[Any, ...]:
    return LIST, (STRUCT, [kind, kind.thrift_spec], False)


class ReplyMessage(Struct):
    fields = {
        1: ("topic", *TEXT),
        2: ("key", *TEXT),
        4: ("hashId", I64),
        5: ("tags", *TEXT),
        6: ("partitionId", I32),
        7: ("body", TType.STRING, "BINARY"),
        9: ("properties", MAP, (TType.STRING, "UTF8", TType.STRING, "UTF8", False)),
        10: ("dueTimes", BOOL),
    }


class ReplyRequest(Struct):
    fields = {
        1: ("context", STRUCT, [Context, Context.thrift_spec]),
        2: ("offset", I64),
        3: ("lease", I64),
        4: ("messages", *_many(ReplyMessage)),
        5: ("clientId", *TEXT),
        6: ("timeout", I64),
    }


class ReplyResult(Struct):
    fields = {
        100: ("messageId", *TEXT),
        101: ("queueId", I32),
        102: ("offset", I64),
        103: ("durability", I32),
        104: ("delayId", *TEXT),
    }


class ReplyResponse(Struct):
    fields = {1: ("code", I32), 2: ("msg", *TEXT), 3: ("outcome", I32), 4: ("results", *_many(ReplyResult))}


apache_client.add_method("reply", "request", ReplyRequest, ReplyResponse)
