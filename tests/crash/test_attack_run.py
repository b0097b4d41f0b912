"""A short run of attacks without a login; the long one is `python -m tests.crash.attack_run`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import attack_run


@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "plain text"])
def test_an_honest_client_is_served_beside_an_attack(tmp_path: Path, tls: bool) -> None:
    printed: list[str] = []
    broken = attack_run.run(
        tmp_path, 0.5, 100, tls=tls, attack="half-open", judge=False, print_line=printed.append
    )
    assert broken == [], printed
    assert [line.partition(":")[0] for line in printed] == ["no attack", "half-open", "afterwards"]
