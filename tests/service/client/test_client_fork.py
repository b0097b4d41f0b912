"""A fork shares no connection with its parent: answers of one would be taken for those of the other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.client.standin import Standin

SCRIPT = Path(__file__).with_name("fork_run.py")
ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_clients_used_before_a_fork_are_rejected_after_it(proxy: Standin) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, SCRIPT, proxy.address], timeout=60, env=env, check=False)
    assert done.returncode == 0
    assert len(proxy.stored) == 5
    _, fresh, in_child, _, in_parent = (message.producerId for message in proxy.stored)
    assert len({fresh, in_child, in_parent}) == 3, "one that was not used before is another in each process"
    assert proxy.stored[2].sequence == proxy.stored[4].sequence == 0
    assert proxy.done == {("t", 0)}
