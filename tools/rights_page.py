"""Write the tables of rights into docs/security.md.

python tools/rights_page.py            write them
python tools/rights_page.py --check    exit code 1 if the page has others
"""

from __future__ import annotations

import sys
from pathlib import Path

from ddmq.server.admin.routes import ROUTES
from ddmq_client.idl import consumer, producer
from ddmq_common.security.rights import CLUSTER_RIGHTS, NAME_RIGHTS
from ddmq_rpc.codec import methods

PAGE = Path(__file__).resolve().parent.parent / "docs" / "security.md"
BEGIN, END = "<!-- rights: made by tools/rights_page.py -->\n", "<!-- end -->\n"
# T topic, G consumer group, P producer group. A test tries them (tests/scenarios/test_rights_of_methods.py).
METHODS = {
    "authenticate": "none",
    "sendSync": "send T",
    "sendAsync": "send T",
    "sendOneway": "send T; otherwise dropped and counted",
    "sendBatchSync": "send T for every topic in the batch",
    "sendBatch": "send T for each message by itself",
    "sendDelaySync": "send T; a change applies only to a message of topic T",
    "sendPrepared": "transact P, and send T for every topic in it",
    "endTransaction": "transact P",
    "pollTransactionChecks": "transact P",
    "callEngine": "node",
    "pull": "consume G, and consume T for the topic or for all topics of the group",
    "submit": "consume G and consume T for each element; otherwise the element is ignored",
    "settle": "consume G and consume T for each element",
    "reply": "consume G and consume T of the acknowledged message, and send T for every reply",
    "getConsumeStats": "describe G; otherwise an empty list",
    "fetch": "consume G, and consume T for every topic; a consumer id is bound to its first identity",
    "ack": "consume G, with the caller's own consumer id; otherwise ignored",
}
# Where a route's words are not the whole rule (ddmq/server/admin/access.py).
ROUTES_MORE = {
    ("GET", "/topics"): "rows with describe; `internal=1`: admin",
    ("GET", "/groups"): "rows with describe",
    ("GET", "/lag"): "rows with describe",
    ("GET", "/dlq"): "rows with describe",
    ("GET", "/keys"): "describe, with `text` browse; without `group` all names",
    ("GET", "/groups/{group}/keys"): "describe, with `text` browse",
    ("GET", "/dlq/{group}"): "describe, with `text` browse",
    ("GET", "/dlq/{group}/facets"): "describe, with `text` browse",
    ("GET", "/clients"): "clients of groups with describe; producers with metrics",
    ("POST", "/log/clean"): "manage for all names",
    ("GET", "/transactions"): "describe; without `group` all names",
    ("GET", "/transactions/{id}"): "transact",
    ("GET", "/delay"): "topics with describe",
    ("GET", "/delay/messages"): "rows with describe, with `key` or `text` browse",
    ("GET", "/delay/count"): "messages of topics with describe, with `key` browse",
    ("GET", "/delay/histogram"): "describe; without `topic` all names",
    ("GET", "/delay/levels"): "describe for all names",
    (
        "GET",
        "/operations",
    ): "rows with describe for the group and topic of `filter`, or with the plan's rights",
    ("GET", "/operations/{id}"): "describe for the group and topic of `filter`, or the plan's rights",
    ("GET", "/changes"): "changes of topics and groups with describe; keys: operate; transactions: all names",
    ("GET", "/changes/{id}"): "as for `/changes`",
    ("POST", "/changes/{id}/undo"): "those of the request that made the change",
    ("POST", "/operations/{id}/start"): "as for the operation's plan",
    ("POST", "/operations/{id}/stop"): "as for the operation's plan",
    (
        "POST",
        "/operations",
    ): "dead letters and keys: operate; resend and delays: send; with `text` or `key` browse; "
    "without a filter all names",
    ("POST", "/topics/{topic}"): "create, or manage if it exists",
    ("POST", "/messages"): "send (and create); with the property from_chronos relay",
    (
        "POST",
        "/groups/{group}",
    ): "create, or manage if it exists; consume the topics; push for `actions`, `push.…`",
    ("POST", "/groups/{group}/topics/{topic}"): "the same",
    ("POST", "/dlq/{group}/resend"): "operate, and send for `topic`; without `topic` all names",
    ("POST", "/delay/backup"): "backup",
    ("GET", "/auth/identities"): "none for the caller's own; admin for others",
    ("GET", "/auth/tokens"): "none for the caller's own; admin for others",
    ("GET", "/auth/explain"): "none for the caller itself; admin for others",
}


def build_tables() -> str:
    """Return the tables as Markdown."""
    lines = ["", "| right | allows to |", "|---|---|"]
    lines += [f"| `{right} NAME` | {text} |" for right, text in NAME_RIGHTS.items()]
    lines += [f"| `{right}` | {text} |" for right, text in CLUSTER_RIGHTS.items()]
    lines += [
        "",
        "T is a topic, G a consumer group and P a producer group. A forwarded call needs `node` instead.",
        "",
    ]
    lines += ["| method | rights |", "|---|---|"]
    described = [*methods(producer, "ProducerService"), *methods(consumer, "ConsumerService")]
    lines += [f"| `{name}` | {METHODS[name]} |" for name in dict.fromkeys(described)]
    lines += ["", "| request of the admin API | rights, for the name in it |", "|---|---|"]
    for route in ROUTES:
        text = ROUTES_MORE.get((route.method, route.path), route.right)
        lines.append(f"| `{route.method} {route.path}` | {text} |")
    return "\n".join([*lines, "", ""])


def main(arguments: list[str]) -> int:
    """Write the page, or check it."""
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    fresh = head + BEGIN + build_tables() + END + tail
    if "--check" not in arguments:
        PAGE.write_text(fresh)
    elif fresh != text:
        print("docs/security.md: the tables of rights are not current; run: python tools/rights_page.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
