"""Order keys that commands and clients reject, although a server takes them for paths. Pure."""

from __future__ import annotations

_NAMED = {"KEY": "message key", "QID": "queue"}


def unambiguous_order_keys(order_key: object) -> str:
    """Say what to write in place of KEY or QID in another case; "" for any other order key.

    To a server such an order key is the path of a field, and its writer may have meant the key.
    """
    word = order_key.upper() if isinstance(order_key, str) else ""
    if word == order_key or word not in _NAMED:
        return ""
    return f"allowed: {word} for the {_NAMED[word]}, $.{order_key} for the field"
