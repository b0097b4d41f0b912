"""Order keys that commands and clients reject, although a server takes them for paths. Pure."""

from __future__ import annotations

_NAMED = {"KEY": "message key", "QID": "queue"}


def unambiguous_order_keys(order_key: object) -> str:
    """Return a text that offers the two readings of KEY or QID in another case; "" for any other order key.

    A server takes such an order key for the path of a field, but its writer may have meant the key.
    """
    word = order_key.upper() if isinstance(order_key, str) else ""
    if word == order_key or word not in _NAMED:
        return ""
    return f"allowed: {word} for the {_NAMED[word]}, $.{order_key} for the field"
