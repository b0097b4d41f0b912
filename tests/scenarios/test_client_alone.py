"""ddmq-client without the server: its wheel in an empty environment sends, receives and acknowledges."""

from __future__ import annotations

import importlib.util
import subprocess
import venv
from importlib.metadata import requires
from pathlib import Path

import pytest

from tests.scenarios.real_server import running
from tests.support.wheels import client_wheel, install, packages_folder

BYTES_MAX = 5_000_000
WORK = """
import importlib.util, sys
import ddmq_client
from ddmq_client import Admin, Consumer, JsonSerializer, Producer
from ddmq_client.aio import AsyncAdmin, AsyncConsumer, AsyncProducer
from ddmq_client.sql import InboxTable, OutboxRelay
servers = ["ddmq_common", "ddmq_rpc", "backend", "gevent", "rocksdict", "msgspec"]
assert [name for name in servers if importlib.util.find_spec(name)] == []
with Producer(sys.argv[1]) as producer:
    assert producer.send("alone", b"one espresso", key="k").stored
with Consumer(sys.argv[2], "loners", "alone") as consumer:
    (message,) = consumer.pull(1, 20_000)
    assert (message.key, message.text()) == ("k", "one espresso")
    assert message.ack()
with Admin(sys.argv[3]) as admin:
    assert admin.get_topic("alone").messages == 1
assert JsonSerializer().deserialize(b"[1]") == [1]
assert ddmq_client.__version__[0].isdecimal()
"""


def thrift_packages() -> list[Path]:
    """The folders of what the client needs, and of what that needs."""
    names = ["thriftpy2", "thrift", "ply", "ijson"]
    assert {line.split("<")[0].split(">")[0] for line in requires("thriftpy2") or () if ";" not in line} == {
        "ply", "ijson",
    }  # fmt: skip
    specs = [importlib.util.find_spec(name) for name in names]
    return [Path(spec.origin).parent for spec in specs if spec is not None and spec.origin is not None]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_client_is_a_distribution_of_its_own(tmp_path: Path) -> None:
    home = tmp_path / "empty"
    venv.create(home)
    python = home / "bin" / "python"
    install(home, client_wheel(tmp_path / "wheels"))
    site = packages_folder(home)
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < BYTES_MAX
    for package in thrift_packages():
        (site / package.name).symlink_to(package)
    with running(tmp_path / "server") as server:
        server.admin("POST", "topics", "alone", body={"create": True})
        server.admin("POST", "groups", "loners", body={"topics": ["alone"], "start": "first"})
        places = [f"127.0.0.1:{server.ports[part]}" for part in ("producer", "consumer", "admin")]
        subprocess.run([str(python), "-P", "-c", WORK, *places], check=True, cwd=tmp_path, timeout=60)
