"""The names of actions in subscriptions, the old ones and ours, and what stands behind each."""

from __future__ import annotations

from difflib import get_close_matches

MARKERS = ("Async", "NonBlockAsync")  # where order keys held in the old chain; ours hold from the read on
STEPS = ("Json", "Script", "Groovy", "Transit", "QueryParams", "FormParams", "FormParams2")
PUSH_SINKS = ("AsyncHttp", "Redis", "File")
PULL_SINKS = ("PullServer", "LowLevel")
SINKS = PULL_SINKS + PUSH_SINKS
KNOWN = MARKERS + STEPS + SINKS
REFUSED = {
    "Hdfs": "use File, or a consumer of your own that writes to HDFS",
    "Hbase": "use AsyncHttp to a service in front of it, or a consumer of your own that writes to HBase",
}


def unknown(name: str) -> str:
    """Why `name` is not an action, and what to use instead."""
    if name in REFUSED:
        return f"action {name!r} is not built here; {REFUSED[name]}"
    close = get_close_matches(name, KNOWN, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(KNOWN)}"
    return f"action {name!r} is unknown; {hint}"


def push_sink(actions: tuple[str, ...]) -> str | None:
    """The sink that the proxy pushes to, None when the chain ends with a pull."""
    return actions[-1] if actions and actions[-1] in PUSH_SINKS else None
