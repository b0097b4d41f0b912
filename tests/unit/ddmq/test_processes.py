"""The parts of `serve --processes`: where their admin API is, and when one that died comes back."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

from ddmq.address import HostPort
from ddmq.server.process.processes import NEVER, ComponentProcess, Supervisor, choose_admin_address

HOST = "127.0.0.1"


def free_above(above: int) -> int:
    """A port so that the one so much above it is free, outside the range of outgoing connections."""
    for port in range(20_000, 30_000):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port + above))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


@pytest.mark.parametrize(("name", "above"), [("consumer", 0), ("producer", 100), ("delay-service", 200)])
def test_the_ports_are_known_beforehand(name: str, above: int) -> None:
    port = free_above(above)
    assert choose_admin_address(HostPort(HOST, port), name) == HostPort(HOST, port + above)


def test_a_port_that_is_taken_is_left_alone() -> None:
    port = free_above(100)
    with socket.create_server((HOST, port + 100)):
        assert choose_admin_address(HostPort(HOST, port), "producer") == HostPort(HOST, 0)


@pytest.mark.parametrize("port", [0, 32_700, 65_500])
def test_a_port_that_was_chosen_by_the_system_says_nothing(port: int) -> None:
    assert choose_admin_address(HostPort(HOST, port), "producer") == HostPort(HOST, 0)


class DyingComponent(ComponentProcess):
    """Its child ends as soon as it starts."""

    starts = 0

    def start(self) -> None:
        self.starts += 1
        self.started_at = NEVER  # it never lives long enough to have settled
        self.child = subprocess.Popen([sys.executable, "-c", ""], text=True)
        self.child.wait()


@pytest.mark.slow
def test_no_component_waits_for_the_pause_of_another() -> None:
    failing, other = DyingComponent("failing", []), DyingComponent("other", [])
    supervisor = Supervisor([failing, other])
    failing.start()
    now = 0.0
    for _ in range(10):
        supervisor.check_component(failing, now)
        now = failing.restart_at
        supervisor.check_component(failing, now)
    supervisor.check_component(failing, now)
    assert failing.restart_at == now + 5.0
    other.start()
    supervisor.check_component(other, now)
    assert other.restart_at == now + 0.1
    supervisor.check_component(other, other.restart_at)
    assert (other.starts, other.restart_at) == (2, NEVER)
    supervisor.stopping = True
    supervisor.check_component(failing, failing.restart_at)
    assert failing.starts == 11, "nothing is started any more"


class InterruptedComponent(ComponentProcess):
    """A signal comes while its child is being started."""

    supervisor: Supervisor
    meanwhile: str

    def start(self) -> None:
        heed = "signal(SIGHUP, SIG_DFL); pthread_sigmask(SIG_SETMASK, ())"  # whatever was inherited
        code = f"from signal import *; {heed}; print(flush=True); pause()"
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        child.stdout.readline()
        getattr(self.supervisor, self.meanwhile)()
        self.child = child


@pytest.mark.slow
@pytest.mark.parametrize(("meanwhile", "number"), [("hang_up", signal.SIGHUP), ("stop", signal.SIGTERM)])
def test_a_signal_that_comes_while_a_component_is_started_reaches_it(
    meanwhile: str, number: signal.Signals
) -> None:
    component = InterruptedComponent("late", [])
    component.supervisor, component.meanwhile = Supervisor([component]), meanwhile
    component.restart_at = 1.0
    component.supervisor.check_component(component, 1.0)
    assert component.child is not None
    assert component.child.wait(60) == -number


class RecordingComponent(ComponentProcess):
    """A component that is ready at an admin port, and records the lines that it is sent."""

    def __init__(self, name: str, port: int) -> None:
        super().__init__(name, [])
        self.addresses = {"admin": HostPort(HOST, port)}
        self.child = subprocess.Popen([sys.executable, "-c", ""], text=True)
        self.lines = ""

    def send_lines(self, lines: str) -> None:
        self.lines = lines


@pytest.mark.slow
def test_the_public_process_learns_the_others_and_the_delay_service_those_with_a_proxy() -> None:
    components = [
        RecordingComponent(name, port)
        for port, name in enumerate(("consumer", "producer", "delay-service"), 1)
    ]
    consumer, producer, delay = components
    Supervisor([*components])
    delay.when_ready()
    assert consumer.lines == f"part producer {HOST}:2\npart delay-service {HOST}:3\n"
    assert producer.lines == ""
    assert delay.lines == f"proxy consumer {HOST}:1\nproxy producer {HOST}:2\n"
    producer.addresses = {}
    consumer.when_ready()
    assert delay.lines == f"proxy consumer {HOST}:1\n"
    for component in components:
        assert component.child is not None
        component.child.wait()
