"""Producer and consumer under gevent's monkey patching, in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EXPECTED = """\
sent 200
timed out True True
lost
handled True True
stopped True
after kill True
transactions 101 301
traced True 50
signalled [False] True
ticked True
"""


@pytest.mark.slow
def test_under_gevent() -> None:
    path = str(HERE.parents[2])
    run = subprocess.run(
        [sys.executable, str(HERE / "gevent_run.py")],
        capture_output=True,
        text=True,
        timeout=110,
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert (run.stdout, run.returncode) == (EXPECTED, 0), run.stderr


@pytest.mark.slow
def test_importing_the_contract_loads_no_network_modules_of_the_client() -> None:
    code = "import sys, ddmq_client.idl; print([m for m in sys.modules if m.startswith('ddmq_client')])"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=HERE.parents[2],
    )
    loaded = set(eval(run.stdout))
    assert loaded <= {
        "ddmq_client",
        "ddmq_client.idl",
        "ddmq_client.idl.producer_thrift",
        "ddmq_client.idl.consumer_thrift",
    }
