"""ddmq-client without the server: its wheel in an empty environment sends, receives and acknowledges."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import venv
import zipfile
from email import message_from_bytes
from importlib.metadata import distribution as metadata_of
from importlib.metadata import requires
from pathlib import Path

import pytest

from tests.scenarios.real_server import running
from tests.support.wheels import client_wheel, contents, install, packages_folder

BYTES_MAX = 5_000_000  # installed, compiled; the test kit's copy of the server has its own bound
COPY_BYTES_MAX = 5_600_000
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


BROKER = """
import sys
from datetime import timedelta
from importlib.metadata import entry_points
from ddmq_client.testing import TestBroker, make_message
assert make_message(b"one").ack()
seen = []
with TestBroker() as broker:
    broker.create_group("loners", "alone", order_key="$.id", retry_intervals_ms=[50])
    broker.consumer("loners", "alone", lambda message: seen.append(message.text()))
    producer = broker.producer()
    producer.send("alone", '{"id": 17}')
    producer.send("alone", "every midnight", cron="0 0 * * *", zone="Europe/Berlin", times=1)
    broker.clock.advance(timedelta(days=1))
assert seen == ['{"id": 17}', "every midnight"]
(copy,) = [name for name in sys.modules if name.endswith("ddmq.in_process.server")]
assert copy.startswith("ddmq_client.testing._server.")
assert [point.value for point in entry_points(group="pytest11")] == ["ddmq_client.testing.plugin"]
"""
WITHOUT = """
from ddmq_client import ClientError
from ddmq_client.testing import TestBroker, make_message
assert make_message(b"one").ack()
try:
    TestBroker()
except ClientError as error:
    assert "install the client with its extra `testing`" in str(error)
else:
    raise AssertionError("there is no msgspec")
"""


def thrift_packages() -> list[Path]:
    """The folders of what the client needs, and of what that needs."""
    names = ["thriftpy2", "thrift", "ply", "ijson"]
    assert {line.split("<")[0].split(">")[0] for line in requires("thriftpy2") or () if ";" not in line} == {
        "ply", "ijson",
    }  # fmt: skip
    specs = [importlib.util.find_spec(name) for name in names]
    return [Path(spec.origin).parent for spec in specs if spec is not None and spec.origin is not None]


def extra_packages(wheel: Path) -> list[Path]:
    """The folders and files of what the extra `testing` installs, and of what that needs."""
    (metadata,) = [name for name in contents(wheel) if name.endswith(".dist-info/METADATA")]
    with zipfile.ZipFile(wheel) as archive:
        requirements = message_from_bytes(archive.read(metadata)).get_all("Requires-Dist") or []
    extra = [re.split(r"[<>=;\s]", line)[0] for line in requirements if 'extra == "testing"' in line]
    assert len(extra) == 8
    packages: list[Path] = []
    for name in extra:
        distribution = metadata_of(name)
        tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "bin")}
        packages += [Path(str(distribution.locate_file(top))) for top in sorted(tops)]
    return [path for path in packages if path.exists() and path.name != "__pycache__"]


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_client_is_a_distribution_of_its_own(tmp_path: Path) -> None:
    home = tmp_path / "empty"
    venv.create(home)
    python = home / "bin" / "python"
    install(home, client_wheel(tmp_path / "wheels"))
    site = packages_folder(home)
    copy = site / "ddmq_client" / "testing" / "_server"
    assert size_of(copy) < COPY_BYTES_MAX
    assert size_of(site) - size_of(copy) < BYTES_MAX
    for package in thrift_packages():
        (site / package.name).symlink_to(package)
    with running(tmp_path / "server") as server:
        server.admin("POST", "topics", "alone", body={"create": True})
        server.admin("POST", "groups", "loners", body={"topics": ["alone"], "start": "first"})
        addresses = [
            f"127.0.0.1:{server.ports[component]}" for component in ("producer", "consumer", "admin")
        ]
        subprocess.run([str(python), "-P", "-c", WORK, *addresses], check=True, cwd=tmp_path, timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_test_kit_needs_its_extra_and_no_server(tmp_path: Path) -> None:
    home = tmp_path / "empty"
    venv.create(home)
    python = home / "bin" / "python"
    wheel = client_wheel(tmp_path / "wheels")
    install(home, wheel)
    site = packages_folder(home)
    for package in thrift_packages():
        (site / package.name).symlink_to(package)
    subprocess.run([str(python), "-P", "-c", WITHOUT], check=True, cwd=tmp_path, timeout=60)
    for package in extra_packages(wheel):
        if not (site / package.name).exists():
            (site / package.name).symlink_to(package)
    subprocess.run([str(python), "-P", "-c", BROKER], check=True, cwd=tmp_path, timeout=60)
