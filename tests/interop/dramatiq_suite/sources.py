"""The source distribution of the locked Dramatiq, from the package index, and its tests beside our fixtures.

Nothing of it is kept in this tree: the tests are unpacked into a folder of their own, as a package
`dramatiq_tests`. Its conftest and `common` are ours, because the distribution has none.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = "dramatiq_tests"
CONFTEST = "from tests.interop.dramatiq_suite.fixtures import *  # noqa: F403\n"
COMMON = "from tests.interop.dramatiq_suite.common import *  # noqa: F403\n"
# The tests of the RabbitMQ broker import it; nothing of it is used.
PIKA = "pika==1.4.1 --hash=sha256:2daae7bd422a0fc4f4879fd48c9a1932ed74a0bc7172e1e5f9bde63a101ed074\n"


class NotAvailable(Exception):
    """The package index cannot be reached, or does not have what is asked for."""


def locked_requirement() -> str:
    """Return the entry of Dramatiq in the lock: its version, and the hashes of its files."""
    lock = (ROOT / "requirements.lock").read_text()
    entry = re.search(r"^dramatiq==.*(?:\n +--hash.*)+", lock, re.MULTILINE)
    assert entry is not None, "dramatiq is locked"
    return entry[0] + "\n"


def run_pip(*arguments: str) -> None:
    """Run pip quietly, with a bounded wait; NotAvailable if it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, "--quiet"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired as error:
        raise NotAvailable(f"{' '.join(arguments[:2])} took more than 120 s") from error
    if result.returncode:
        raise NotAvailable(result.stderr.strip().splitlines()[-1] if result.stderr else "pip failed")


def prepare_tests(folder: Path) -> dict[str, str]:
    """Unpack Dramatiq's tests below `folder`; return the environment in which they run. NotAvailable."""
    requirement = folder / "requirement.txt"
    requirement.write_text(locked_requirement())
    options = ("--no-deps", "--no-build-isolation", "--no-binary", "dramatiq", "-d", str(folder))
    run_pip("download", *options, "-r", str(requirement))
    requirement.write_text(PIKA)
    run_pip("install", "--no-deps", "--target", str(folder / "site"), "-r", str(requirement))
    (archive,) = folder.glob("dramatiq-*.tar.gz")
    package = folder / PACKAGE
    package.mkdir()
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            path = Path(member.name)
            if path.parent.name == "tests" and path.suffix == ".py" and member.isfile():
                content = tar.extractfile(member)
                assert content is not None
                (package / path.name).write_bytes(content.read())
    (package / "__init__.py").write_text("")
    (package / "conftest.py").write_text(CONFTEST)
    (package / "common.py").write_text(COMMON)
    return {"PYTHONPATH": f"{folder}:{ROOT}:{folder / 'site'}"}
