"""Network namespaces, one a node, joined by a bridge; links between them are cut and mended at will.

Made with `ip` alone, by root; the addresses are from 198.18.0.0/15, which nothing else uses (RFC 2544), and
none of it is routed anywhere. Every node knows the others' hardware addresses for good (no ARP). A link is
cut by telling a node a hardware address that nobody has: what it sends there gets lost without an error, as
in a network, and connections that are open feel it, too. Each direction is cut for itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence

NOBODY = "02:dd:ff:ff:ff:ff"
Link = tuple[str, str]  # from, to


def why_not() -> str:
    """Why there can be none here; empty when there can."""
    if shutil.which("ip") is None:
        return "there is no `ip` (Debian: apt-get install iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    tried = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"`ip netns` does not work: {tried.stderr.strip()}"


class Namespaces:
    """Made at once; `close` takes everything away."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._tag = f"dq{os.getpid() % 100_000}"
        self._net = f"198.18.{os.getpid() % 250}"
        self._numbers = {node: number for number, node in enumerate(nodes, 10)}
        self.broken_links: set[Link] = set()
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        bridge = f"{self._tag}br"
        _ip(
            f"link add {bridge} type bridge",
            f"addr add {self._net}.1/24 dev {bridge}",
            f"link set {bridge} up",
        )
        for node, number in self._numbers.items():
            port, name = self._port(number), self.name(node)
            _ip(
                f"netns add {name}",
                f"link add {port} type veth peer name eth0 address {_hardware(number)} netns {name}",
                f"link set {port} master {bridge}",
                f"link set {port} up",
            )
            inside = [f"addr add {self.address(node)}/24 dev eth0", "link set eth0 up", "link set lo up"]
            _ip(*inside, inside=name)
        for node in self._numbers:
            self._apply([(node, other) for other in self._numbers if other != node])

    def _port(self, number: int) -> str:
        return f"{self._tag}p{number}"

    def name(self, node: str) -> str:
        """What `ip netns` calls it."""
        return f"{self._tag}-{node}"

    def address(self, node: str) -> str:
        """Its IP address."""
        return f"{self._net}.{self._numbers[node]}"

    def before(self, node: str) -> tuple[str, ...]:
        """What stands before a command line that is to run there."""
        return ("ip", "netns", "exec", self.name(node))

    def disconnect(self, links: Iterable[Link]) -> None:
        """Nothing goes over these any more, in this direction."""
        changed = set(links)
        self.broken_links |= changed
        self._apply(changed)

    def mend(self) -> None:
        """Everything goes everywhere."""
        changed, self.broken_links = self.broken_links, set()
        self._apply(changed)

    def _apply(self, links: Iterable[Link]) -> None:
        commands: dict[str, list[str]] = {}
        for sender, other in links:
            hardware = NOBODY if (sender, other) in self.broken_links else _hardware(self._numbers[other])
            line = f"neigh replace {self.address(other)} lladdr {hardware} dev eth0 nud permanent"
            commands.setdefault(sender, []).append(line)
        for sender, lines in commands.items():
            _ip(*lines, inside=self.name(sender))

    def close(self) -> None:
        """Take everything away; what runs in there should have ended.

        The links go first and by name: those that go with their namespace do so some time after the command.
        """
        for number in self._numbers.values():
            subprocess.run(["ip", "link", "del", self._port(number)], capture_output=True)
        for node in self._numbers:
            subprocess.run(["ip", "netns", "del", self.name(node)], capture_output=True)
        subprocess.run(["ip", "link", "del", f"{self._tag}br"], capture_output=True)


def _hardware(number: int) -> str:
    return f"02:dd:00:00:00:{number:02x}"


def _ip(*lines: str, inside: str = "") -> None:
    command = ["ip", *(["-n", inside] if inside else []), "-batch", "-"]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True)
    assert done.returncode == 0, (lines, done.stderr)
