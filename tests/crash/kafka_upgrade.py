"""Servers on Kafka are replaced one by one by servers of this tree, under load, and what came is checked.

    python -m tests.crash.kafka_upgrade --seed 7 --rounds 6 --brokers 3

Three `ddmq serve` of an earlier build and the load of kafka_rounds.py. In each of the first three rounds one
of them is stopped with SIGTERM and started again from this tree; until the last one, both versions share the
queues. In the rounds after that, and with `--kills` between them, servers of this tree are killed with
kill -9. The feature level must stay at 1 until the last server of the earlier build has stopped, and rise
then; afterwards the earlier build must refuse to start. The promises are those of kafka_rounds.py.

The earlier build does not have the strict order of a killed server, so its servers are never killed.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

from ddmq.trial.cluster import Ports, TrialCluster, free_ports
from tests.crash.kafka.run import KafkaRun, judged
from tests.crash.kafka_rounds import BUSY
from tests.crash.kit.command import PrintLine, long_run, replay_command
from tests.scenarios.real_server import RealServer
from tests.support.waits import until

EARLIER = "1caf8cba"  # the last build whose processes state no feature level
LOAD_S = 8.0  # before each round
RISE_S, REFUSAL_S = 30.0, 180.0  # on a busy machine
_REPOSITORY = Path(__file__).resolve().parents[2]


def has_earlier_build() -> bool:
    """Return whether the commit of the earlier build is in this repository; a shallow clone lacks it."""
    command = ["git", "-C", str(_REPOSITORY), "cat-file", "-e", f"{EARLIER}^{{commit}}"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def unpack_earlier_build(folder: Path) -> Path:
    """Write the tree of the earlier build to `folder`."""
    command = ["git", "-C", str(_REPOSITORY), "archive", EARLIER]
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def feature_level(server: RealServer) -> int:
    """Return the feature level in a server's metrics."""
    return round(server.metric("ddmq_kafka_feature_level"))


class Upgrade(KafkaRun):
    """One run."""

    def __init__(self, folder: Path, seed: int, brokers: int, kills: bool, print_line: PrintLine) -> None:
        cluster = TrialCluster(folder / "kafka", BUSY)
        cluster.make([Ports(*free_ports(2)) for _ in range(brokers)])
        super().__init__(folder, seed, cluster, "", print_line)
        self._earlier = unpack_earlier_build(folder / "earlier")
        self._kills = kills
        self._upgraded: list[RealServer] = []
        for server in self.servers:
            server.tree = self._earlier

    def load_s(self) -> float:
        return LOAD_S

    def round(self) -> str:
        if len(self._upgraded) < len(self.servers):
            server = self.servers[len(self._upgraded)]
            what = self._upgrade(server)
            if self._kills:
                what += f"; {self._kill(self.random.choice(self._upgraded))}"
            return what
        return self._kill(self.random.choice(self.servers))

    def _upgrade(self, server: RealServer) -> str:
        what = f"upgrade server {self.servers.index(server)}"
        self.happens(what, "upgrade")
        server.terminate()
        server.wait()
        server.tree = _REPOSITORY
        server.start()
        self._upgraded.append(server)
        self._check_level()
        return what

    def _kill(self, server: RealServer) -> str:
        what = f"kill server {self.servers.index(server)}"
        self.happens(what, "kill")
        server.kill()
        server.start()
        return what

    def _check_level(self) -> None:
        """Check that the level is 1 while servers of both versions run, and rises after that."""
        if len(self._upgraded) < len(self.servers):
            levels = [feature_level(server) for server in self._upgraded]
            if set(levels) != {1}:
                self.account.violations.append(f"LEVEL: {levels} while an earlier build runs")
            return
        until(lambda: all(feature_level(server) == 2 for server in self.servers), "the level rises", RISE_S)
        self._check_refusal()

    def _check_refusal(self) -> None:
        """Check that a server of the earlier build does not start any more."""
        late = self.server(self._earlier.parent, len(self.servers))
        late.tree = self._earlier
        late.launch()
        try:
            late.wait(REFUSAL_S)
        except subprocess.TimeoutExpired:
            self.account.violations.append("LEVEL: the earlier build started after the level had risen")
        else:
            if "feature level 2" not in late.log:
                self.account.violations.append(f"LEVEL: the earlier build was refused with {late.log[-500:]}")
        finally:
            late.kill()


def run(
    folder: Path, seed: int, rounds: int, brokers: int, kills: bool = False, print_line: PrintLine = print
) -> list[str]:
    """Report what the run sees, and return the broken promises."""
    options = {"seed": seed, "rounds": rounds, "brokers": brokers, "kills": kills}
    print_line("the same again: " + replay_command("kafka_upgrade", **options))
    return judged(Upgrade(folder, seed, brokers, kills, print_line), rounds)


def main() -> int:
    return long_run(__doc__, "kafka-upgrade", run, seed=None, rounds=6, brokers=(1, 3), kills=False)


if __name__ == "__main__":
    sys.exit(main())
