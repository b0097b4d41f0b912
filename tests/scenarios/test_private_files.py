"""Who else on the machine gets at a server's files, and who reaches its ports."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.file_log.sessions.server import SOCKET_FILE, connect, peer_uid
from ddmq.server.config import Configuration, ServeConfig, load_folder
from ddmq.server.retired_keys import warn_of_old_name
from ddmq_client import Consumer
from ddmq_common.errors import ConfigError
from ddmq_common.security.policy import IdentityEntry
from ddmq_common.security.settings import SecurityConfig, TlsConfig, TlsMode
from tests.scenarios.real_server import NotReady, RealServer, ddmq, running, write_config
from tests.support.folders import reachable_folder
from tests.support.waits import until

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")


def modes(folder: Path) -> Iterator[tuple[str, int, bool]]:
    for path in [folder, *folder.rglob("*")]:
        mode = path.lstat().st_mode
        yield str(path.relative_to(folder)), stat.S_IMODE(mode), stat.S_ISDIR(mode)


def test_every_file_of_a_server_is_its_users_alone(tmp_path: Path) -> None:
    config = write_config(tmp_path / "conf", ddmq={"samples": {"interval_ms": 100}})
    before = os.umask(0)  # the most open one there is
    try:
        server = RealServer(tmp_path, config).start()
    finally:
        os.umask(before)
    try:
        use(server)
        until(lambda: list((tmp_path / "data" / "metrics").rglob("*.jsonl*")), "samples")
        paths = list(modes(server.data_dir))
        assert [each for each in paths if each[1] & 0o077] == []
        assert {"writer.lock", "writer.sock", "delay", "metrics"} <= {name for name, _, _ in paths}
    finally:
        server.end()
    assert [each for each in modes(server.data_dir) if each[1] & 0o077] == []


def use(server: RealServer) -> None:
    """Sends, delays, reads and a backup."""
    producer = ["--producer", f"127.0.0.1:{server.ports['producer']}"]
    assert ddmq("send", "t", "hello", "--key", "k", *producer).returncode == 0
    assert ddmq("delay", "add", "t", "later", "--delay", "1h", *producer).returncode == 0
    with Consumer(f"127.0.0.1:{server.ports['consumer']}", "g", "t") as consumer:
        consumer.pull(1, timeout_ms=100)


def test_a_directory_of_the_release_before_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    (tmp_path / "data").chmod(0o755)
    with running(tmp_path) as server:
        assert stat.S_IMODE(server.data_dir.stat().st_mode) == 0o700
        assert "others may no longer read the directory" in server.log
        assert "mode_was=0755" in server.log


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_directory_that_others_may_write_is_rejected(tmp_path: Path, mode: int) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(mode)
    with pytest.raises(NotReady, match="others may replace files in it; run: chmod 700"):
        RealServer(tmp_path).start()
    result = ddmq("doctor", "--json", "--data-dir", str(tmp_path / "data"))  # a table breaks long lines
    assert result.returncode == 1
    assert "others may replace files in it" in result.stdout


@as_root
def test_a_directory_of_another_user_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    os.chown(tmp_path / "data", NOBODY, NOBODY)
    with pytest.raises(NotReady, match="belongs to user 65534, and this process is"):
        RealServer(tmp_path).start()
    assert not list((tmp_path / "data").iterdir())


IMPOSTOR = """
import os, socket, sys
os.setuid(65534)
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1]); listener.listen(8); print("there", flush=True); sys.stdin.read()
"""


@as_root
def test_a_socket_that_another_user_put_there_is_not_used(
    short_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    short_folder.chmod(0o777)
    with subprocess.Popen(
        [sys.executable, "-c", IMPOSTOR, str(short_folder / SOCKET_FILE)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as impostor:  # fmt: skip
        assert impostor.stdout is not None
        assert impostor.stdout.readline() == "there\n"
        assert connect(short_folder) is None
        impostor.communicate("")
    assert "is not used" in caplog.text


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with reachable_folder() as folder:
        yield folder


def test_both_ends_know_each_other(tmp_path: Path) -> None:
    here, there = socket.socketpair()
    assert peer_uid(here) == peer_uid(there) == os.geteuid()
    here.close()
    there.close()


@pytest.mark.parametrize("component", ["producer", "consumer", "admin"])
@pytest.mark.parametrize("processes", [(), ("--processes",)])
def test_no_address_beyond_loopback_is_bound_without_permission(
    tmp_path: Path, component: str, processes: tuple[str, ...]
) -> None:
    result = ddmq("serve", "--data-dir", str(tmp_path / "data"), f"--{component}", "0.0.0.0:0", *processes)
    assert result.returncode == 1
    assert f"Error: --{component} 0.0.0.0:0 is not loopback" in result.stderr
    assert "ddmq secure init --host NAME" in result.stderr
    assert "--insecure" in result.stderr
    assert not (tmp_path / "data").exists()


def test_addresses_beyond_loopback_are_accepted_where_allowed(tmp_path: Path) -> None:
    for name in ("insecure", "beyond_loopback"):
        conf = write_config(tmp_path / name, ddmq={"producer": "[::]:0", "admin": "0.0.0.0:0", name: True})
        load_folder(conf).check_reach(("producer", "admin"))
    for host in ("127.0.0.1", "127.8.8.8", "localhost", "[::1]"):
        listening_at(host).check_reach(("admin",))
    for host in ("10.0.0.1", "[::]", "0.0.0.0", "[fe80::1]"):
        with pytest.raises(ConfigError, match=r"not loopback, and security\.yaml has no identities"):
            listening_at(host).check_reach(("admin",))


def listening_at(host: str, tls: TlsMode = TlsMode.OFF, identities: bool = False) -> Configuration:
    files = {"certificate": Path("server.crt"), "key": Path("server.key")} if tls is not TlsMode.OFF else {}
    security = SecurityConfig(
        TlsConfig(**files, admin=tls), {"root": IdentityEntry("admin")} if identities else None
    )
    return Configuration(ServeConfig(admin=f"{host}:0"), security=security)


def test_beyond_loopback_a_port_needs_identities_and_tls() -> None:
    for mode in (TlsMode.OPTIONAL, TlsMode.REQUIRED):
        listening_at("0.0.0.0", mode, identities=True).check_reach(("admin",))
        with pytest.raises(ConfigError, match="has no identities"):
            listening_at("0.0.0.0", mode).check_reach(("admin",))
    with pytest.raises(ConfigError, match=r"`tls\.admin: off`: others can read what passes"):
        listening_at("0.0.0.0", identities=True).check_reach(("admin",))


def test_the_old_name_of_insecure_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_old_name(ServeConfig(insecure=True).beyond_loopback)
    assert caplog.text == ""
    warn_of_old_name(ServeConfig(beyond_loopback=True).beyond_loopback)
    assert "is now called --insecure" in caplog.text
