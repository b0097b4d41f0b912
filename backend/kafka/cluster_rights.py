"""Which rights ddmq's user lacks on its own topics, and what stops without them. Pure.

docs/kafka-security.md lists all rights. The brokers state the rights on topics only; if one on groups,
transactional ids or new topics is missing, the errors of the operations that need it say so.
"""

from __future__ import annotations

from backend.kafka.cluster_rules import DDMQ_KINDS, ClusterFacts, ClusterFinding

# By Kafka's name of the operation: what stops, and whether nothing works without it.
NEEDED_RIGHTS = {
    "Read": ("no message, and no state of the system, can be read", True),
    "Write": ("nothing can be stored", True),
    "Delete": ("the topic cannot be deleted, and records of finished delay commands stay", False),
    "Alter": ("no queues can be added", False),
    "AlterConfigs": ("its settings cannot be set, nor be put right again", False),
}


def find_denied(facts: ClusterFacts) -> list[ClusterFinding]:
    """Return one finding for each right that is missing on topics of ddmq."""
    findings = []
    for right, (breaks, stops) in NEEDED_RIGHTS.items():
        topics = [
            resource.name
            for resource in facts.resources
            if resource.kind in DDMQ_KINDS and right in resource.denied
        ]
        if topics:
            findings.append(
                ClusterFinding(
                    tuple(f"topic {name}" for name in topics),
                    f"this user has no right to {right}",
                    breaks,
                    f"run: kafka-acls.sh --add --allow-principal User:… --operation {right} --topic"
                    f" {topics[0]} (docs/kafka-security.md has all rights, with prefixes)",
                    False,
                    stops,
                )
            )
    return findings
