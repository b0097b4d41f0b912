"""Is a message legal? Pure checks on the bytes that arrived; all of them answer code 11.

Rules: lengths count characters, not bytes; strings must be UTF-8; the body is bytes and is never looked
into. The order is topic name, key, tags, properties, body, and the first rejection is the answer. A plain
message costs one call and a handful of comparisons (`check_content` returns before any loop).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ddmq_client.idl.codes import (
    DELAY_PROPERTY,
    FROM_CHRONOS,
    PRESSURE_TRAFFIC,
    RESERVED_PROPERTIES,
)
from ddmq_common.names import HEARTBEAT_TOPIC, find_topic_name_error, is_internal
from proxy_producer.core.rejections import SendRejection, build_illegal_rejection, quote_text

KEY_CHARACTERS_MAX = 255
DELAY = DELAY_PROPERTY.encode()
PRESSURE = PRESSURE_TRAFFIC.encode()
CHRONOS = FROM_CHRONOS.encode()
HEARTBEAT = HEARTBEAT_TOPIC.encode()
RESERVED = frozenset(name.encode() for name in RESERVED_PROPERTIES)
_SPACE = 0x20  # text that starts above it is not blank, or is not ASCII and looked at with more care
_TEXT_ALLOWED = f"allowed: at most {KEY_CHARACTERS_MAX} characters of UTF-8"
_BLANK_ALLOWED = "allowed: any text with at least one character that is not white space"


class ContentLimits(NamedTuple):
    """Limits for the messages of one topic. `forbidden`: bytes that the engine cannot store in text."""

    body_bytes_max: int
    properties_bytes_max: int
    forbidden: bytes = b""


def check_topic_name(name: bytes | None) -> SendRejection | None:
    """Return why a client may not use this topic name (malformed or reserved), or None."""
    if not name:
        return build_illegal_rejection(
            "topic_name", "the topic is empty", "allowed: a name of letters, digits and _ - % |"
        )
    text = name.decode("utf-8", "backslashreplace")
    if error := find_topic_name_error(text):
        what, _, allowed = error.partition("; ")
        return build_illegal_rejection(
            "topic_name", what, allowed or "allowed: 1 to 127 of letters, digits and _ - % |"
        )
    if is_internal(text):
        return build_illegal_rejection(
            "topic_reserved", f"topic {text!r} is reserved", "allowed: names without a system prefix"
        )
    return None


def check_content(
    key: bytes,
    tags: bytes,
    body: bytes | None,
    properties: Mapping[bytes, bytes] | None,
    limits: ContentLimits,
) -> SendRejection | None:
    """Return the rejection of a message's invalid content, or None.

    `body`: field 7 of the message, else field 3.
    """
    if (
        not properties
        and body
        and len(body) <= limits[0]
        and len(key) <= KEY_CHARACTERS_MAX
        and len(tags) <= KEY_CHARACTERS_MAX
        and key.isascii()
        and tags.isascii()
        and not limits[2]
    ):
        return None
    return (
        _check_text("key", key, limits.forbidden)
        or _check_text("tags", tags, limits.forbidden)
        or (check_properties(properties, limits) if properties else None)
        or _check_body(body, limits)
    )


def _check_text(what: str, text: bytes, forbidden: bytes) -> SendRejection | None:
    if len(text) > KEY_CHARACTERS_MAX or not text.isascii():
        try:
            characters = len(text.decode("utf-8"))
        except UnicodeDecodeError as error:
            return _build_utf8_rejection(what, text, error)
        if characters > KEY_CHARACTERS_MAX:
            return build_illegal_rejection(
                f"{what}_long", f"{what} {quote_text(text)} has {characters} characters", _TEXT_ALLOWED
            )
    if forbidden and len(text.translate(None, forbidden)) != len(text):
        return _build_forbidden_rejection(what, text, forbidden)
    return None


def check_properties(properties: Mapping[Any, Any], limits: ContentLimits) -> SendRejection | None:
    """Return the rejection of invalid properties, or None. Names and values may be None, as received."""
    size = 0
    for name, value in properties.items():
        if not name or not value or name[0] <= _SPACE or value[0] <= _SPACE or name in RESERVED:
            rejection = _check_property_name(name or b"", value or b"")
            if rejection:
                return rejection
        if not (name.isascii() and value.isascii()) and (rejection := _check_property_text(name, value)):
            return rejection
        size += len(name) + len(value)
    if size > limits.properties_bytes_max:
        return build_illegal_rejection(
            "properties_long",
            f"the properties have {size} bytes",
            f"allowed: names and values of at most {limits.properties_bytes_max} bytes together",
        )
    return _check_forbidden_bytes(properties, limits.forbidden) if limits.forbidden else None


def _check_property_name(name: bytes, value: bytes) -> SendRejection | None:
    """Return the rejection of a property name that is empty, starts with white space or is reserved, or
    None."""
    if name == DELAY and value.isdigit():
        return None
    if not name.strip():
        return build_illegal_rejection(
            "property_blank", f"a property name {quote_text(name)} is blank", _BLANK_ALLOWED
        )
    if name == DELAY:
        return build_illegal_rejection(
            "property_reserved",
            f"property DELAY has the value {quote_text(value)}",
            "allowed: a whole number, the delay level (0 = none)",
        )
    if name in RESERVED:
        return build_illegal_rejection(
            "property_reserved",
            f"property name {quote_text(name)} is reserved",
            f"allowed: any name but these {len(RESERVED)}: {b' '.join(sorted(RESERVED)).decode()}",
        )
    if value.strip():
        return None
    return build_illegal_rejection(
        "property_blank", f"property {quote_text(name)} has the value {quote_text(value)}", _BLANK_ALLOWED
    )


def _check_property_text(name: bytes, value: bytes) -> SendRejection | None:
    """Return the rejection of non-ASCII text that is not UTF-8 or is blank in Unicode's sense, or None."""
    for what, text in (("a property name", name), (f"the value of property {quote_text(name)}", value)):
        try:
            blank = not text.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            return _build_utf8_rejection(what, text, error)
        if blank:
            return build_illegal_rejection(
                "property_blank", f"{what} is blank: {quote_text(text)}", _BLANK_ALLOWED
            )
    return None


def _check_body(body: bytes | None, limits: ContentLimits) -> SendRejection | None:
    if not body:
        return build_illegal_rejection(
            "body_empty",
            "the body has 0 bytes",
            f"allowed: 1 to {limits.body_bytes_max} bytes in field 7 or 3",
        )
    if len(body) > limits.body_bytes_max:
        return build_illegal_rejection(
            "body_long", f"the body has {len(body)} bytes", f"allowed: 1 to {limits.body_bytes_max} bytes"
        )
    return None


def _build_utf8_rejection(what: str, text: bytes, error: UnicodeDecodeError) -> SendRejection:
    bad = text[error.start]
    return build_illegal_rejection(
        "not_utf8", f"{what} is not UTF-8: byte 0x{bad:02x} at position {error.start}", "allowed: UTF-8 text"
    )


def _build_forbidden_rejection(what: str, text: bytes, forbidden: bytes) -> SendRejection:
    first_byte = next(byte for byte in text if byte in forbidden)
    return build_illegal_rejection(
        "forbidden_byte",
        f"{what} {quote_text(text)} holds byte 0x{first_byte:02x}",
        "allowed: text without the bytes that this cluster's engine keeps for itself",
    )


def _check_forbidden_bytes(properties: Mapping[bytes, bytes], forbidden: bytes) -> SendRejection | None:
    for name, value in properties.items():
        for text in (name, value):
            if len(text.translate(None, forbidden)) != len(text):
                return _build_forbidden_rejection(f"property {quote_text(name)}", text, forbidden)
    return None


def delay_level(properties: Mapping[bytes, bytes]) -> int:
    """Return the delay level from the (checked) property DELAY; 0 if there is none."""
    digits = properties.get(DELAY, b"").lstrip(b"0")
    return int(digits[:6]) if digits else 0


def check_no_delay_property(properties: Mapping[bytes, bytes]) -> SendRejection | None:
    """Reject property DELAY in a request that states its own due time; return None if the property is
    absent."""
    if DELAY not in properties:
        return None
    return build_illegal_rejection(
        "property_reserved", "property DELAY stands in a delay message", "allowed: DELAY in plain sends only"
    )


def build_heartbeat_rejection() -> SendRejection:
    """Return the rejection of a heartbeat message in anything but a single send."""
    return build_illegal_rejection(
        "topic_reserved",
        f"topic {HEARTBEAT_TOPIC!r} is for heartbeats, which nothing stores",
        "allowed: a single send without a delay",
    )


def check_batch_size(
    messages: int, body_bytes: int, messages_max: int, body_bytes_max: int
) -> SendRejection | None:
    """Return the rejection of a batch that is too large, or None."""
    if messages > messages_max:
        return build_illegal_rejection(
            "batch_long",
            f"the batch has {messages} messages",
            f"allowed: at most {messages_max}; split it",
        )
    if body_bytes > body_bytes_max:
        return build_illegal_rejection(
            "batch_long",
            f"the batch's bodies have {body_bytes} bytes",
            f"allowed: at most {body_bytes_max} together; split it",
        )
    return None
