"""Brokers of which the last has a topic of its own, and may be away all the time without the others noticing.

It has no vote in the quorum, and Kafka places nothing else there once it is away.
"""

from __future__ import annotations

from ddmq.trial.cluster import TrialCluster


class ClusterWithSpareBroker(TrialCluster):
    """The brokers that keep the system's topics, and a spare one."""

    @property
    def voters(self) -> range:
        """The numbers of all brokers but the spare one."""
        return range(1, len(self._ports))

    @property
    def spare(self) -> int:
        """The number of the spare broker."""
        return len(self._ports)

    def _format_properties(self, number: int) -> str:
        copies = len(self.voters)
        in_sync = min(copies, 2)
        voters = (f"{n}@{self.host(n)}:{self._ports[n - 1].controller_port}" for n in self.voters)
        settings = {
            "controller.quorum.voters": ",".join(voters),
            "default.replication.factor": copies,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": in_sync,
        }
        if number == self.spare:
            listener = f"PLAINTEXT://{self.host(number)}:{self._ports[number - 1].port}"
            settings |= {"process.roles": "broker", "listeners": listener}
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        return super()._format_properties(number) + lines  # of two lines with one name, the last one counts
