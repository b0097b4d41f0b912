"""The text of a broadcasting instance's offsets file. Pure.

JSON, one object: `format` 1, `group`, `instance`, and `offsets`: topic → queue → next offset. A file of
another group or instance, or one that cannot be read, is refused: starting elsewhere in silence would
leave out messages.
"""

from __future__ import annotations

import json
from typing import Any

from ddmq_client.core.places import Offsets
from ddmq_client.errors import OptionError

FORMAT = 1


def to_text(group: str, instance: str, offsets: Offsets) -> str:
    """What to write."""
    whole = {"format": FORMAT, "group": group, "instance": instance, "offsets": offsets}
    return json.dumps(whole, indent=1, sort_keys=True) + "\n"


def from_text(text: str, group: str, instance: str, path: str) -> Offsets:
    """The offsets of a file. OptionError names the file and what is wrong."""
    try:
        whole = json.loads(text)
    except ValueError as error:
        raise _refused(path, f"is not JSON ({error})") from error
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise _refused(path, f"has not the format {FORMAT}")
    for name, wanted in (("group", group), ("instance", instance)):
        if whole.get(name) != wanted:
            raise _refused(path, f"belongs to {name} {whole.get(name)!r}, not {wanted!r}")
    offsets: Any = whole.get("offsets")
    if not _is_offsets(offsets):
        raise _refused(path, "has no offsets: topic, queue, whole number")
    return {topic: dict(queues) for topic, queues in offsets.items()}


def _is_offsets(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(queues, dict) and all(type(offset) is int and offset >= 0 for offset in queues.values())
        for queues in value.values()
    )


def _refused(path: str, what: str) -> OptionError:
    return OptionError(
        f"offsets_file={path!r} {what}; name another file, or remove this one to start at the newest messages"
    )
