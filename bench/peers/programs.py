"""Servers of others, each started with every write made durable before it is answered."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from bench.peers.system import Server, free_port

NATS = "go install github.com/nats-io/nats-server/v2@v2.12.0; 2.10 is the first that can sync each message"
NATS_CONFIG = """listen: "127.0.0.1:{port}"
ping_interval: "1h"
jetstream {{ store_dir: "{folder}", sync_interval: always, max_file_store: 20GB }}
"""


class RedisServer(Server):
    """An append-only file, `appendfsync always`."""

    program = "redis-server"
    install = "apt-get install redis-server"
    asks_version = ("redis-server", "--version")

    def command(self) -> list[str]:
        settings = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]
        durable = ["--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"]
        return ["redis-server", *settings, *durable]


class RabbitServer(Server):
    """One node; durable queues, persistent messages and confirms are the client's to ask for."""

    program = "rabbitmq-server"
    install = "apt-get install rabbitmq-server"
    asks_version = ("rabbitmqctl", "version")

    def __init__(self, folder: Path) -> None:
        self._epmd = free_port()
        super().__init__(folder)

    def command(self) -> list[str]:
        return [shutil.which("rabbitmq-server", path="/usr/lib/rabbitmq/bin") or self.program]

    def environment(self) -> dict[str, str]:
        where = str(self.folder)
        (self.folder / "plugins").write_text("[].")
        return {
            "HOME": where,
            "ERL_EPMD_PORT": str(self._epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": where,
            "RABBITMQ_LOG_BASE": where,
            "RABBITMQ_PID_FILE": f"{where}/pid",
            "RABBITMQ_CONFIG_FILE": f"{where}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{where}/plugins",
        }

    def stop(self) -> None:
        super().stop()
        subprocess.run(["epmd", "-port", str(self._epmd), "-kill"], capture_output=True, check=False)


class BeanstalkServer(Server):
    """A binlog, synced at each write (`-f 0`)."""

    program = "beanstalkd"
    install = "apt-get install beanstalkd"
    asks_version = ("beanstalkd", "-v")

    def command(self) -> list[str]:
        return ["beanstalkd", "-l", "127.0.0.1", "-p", str(self.port), "-b", str(self.folder), "-f", "0"]


class NatsServer(Server):
    """JetStream in files, each message synced (`sync_interval: always`)."""

    program = "nats-server"
    install = NATS
    asks_version = ("nats-server", "--version")

    def command(self) -> list[str]:
        config = self.folder / "nats.conf"
        config.write_text(NATS_CONFIG.format(port=self.port, folder=self.folder / "store"))
        return ["nats-server", "-c", str(config)]

    @classmethod
    def missing(cls) -> str:
        lacking = super().missing()
        if lacking:
            return lacking
        numbers = cls.version().rpartition("v")[2].split(".")
        return "" if tuple(map(int, numbers[:2])) >= (2, 10) else NATS
