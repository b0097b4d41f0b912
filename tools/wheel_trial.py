"""Build the server's wheel, install it into empty environments and run the demo from there.

    python tools/wheel_trial.py            without extras, then with `spark`, then with `kafka`
    python tools/wheel_trial.py --plain    without extras only

What a user installs is a wheel, what the tests run is the source tree: a module, a conf file or an IDL that
is not packaged shows here only. Versions are those of requirements.lock. Where the extra `kafka` is missing,
`--backend kafka` must say so in one line; where it is there, the engine must load. Exit code 1 when one of
these fails.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tree_copy import copy_tree

from ddmq_common import compiled

ROOT = compiled.ROOT
MISSING = "pip install '.[kafka]'"  # what `--backend kafka` answers without the extra
_PINNED = re.compile(r"^[A-Za-z0-9._-]+==[^ \\]+(?: ; [^\\]+)?", re.MULTILINE)


def pinned() -> str:
    """The versions of requirements.lock, without its hashes: for pip, a list of constraints."""
    return "\n".join(_PINNED.findall((ROOT / "requirements.lock").read_text(encoding="utf-8")))


def build(folder: Path) -> Path:
    """The wheel, made in `folder` from a copy of the tree."""
    source = folder / "source"
    copy_tree(source)
    if compiled.FOLDER.exists():  # used where it fits these sources
        shutil.copytree(compiled.FOLDER, source / compiled.FOLDER.relative_to(ROOT))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(folder), str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def trial(wheel: Path, extra: str, folder: Path) -> None:
    """The demo from an environment that holds the wheel, nothing of the tree. Raises CalledProcessError."""
    environment, start = folder / f"env{extra}", time.monotonic()
    constraints = folder / "constraints.txt"
    constraints.write_text(pinned(), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    install = [environment / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-c", str(constraints), f"{wheel}{extra}"], check=True)
    installed_s = time.monotonic() - start
    ddmq = str(environment / "bin" / "ddmq")
    version = subprocess.run([ddmq, "--version"], cwd=folder, capture_output=True, text=True, check=True)
    if str(compiled.STATE) not in version.stdout:
        raise subprocess.CalledProcessError(1, [ddmq, f"--version: {version.stdout.strip()}"])
    said = subprocess.run([ddmq, "demo"], cwd=folder, capture_output=True, text=True, check=False)
    if said.returncode:
        print(said.stdout + said.stderr)
        said.check_returncode()
    demo_s = time.monotonic() - start - installed_s
    kafka_trial(environment, extra, folder)
    print(f"wheel{extra}: installed in {installed_s:.0f} s, its demo ran {demo_s:.0f} s", flush=True)


def kafka_trial(environment: Path, extra: str, folder: Path) -> None:
    """The engine loads where its extra is installed; elsewhere the command says what to install."""
    if extra == "[kafka]":
        load = [environment / "bin" / "python", "-c", "import backend.kafka.engine.backend"]
        subprocess.run(load, cwd=folder, check=True)
        return
    serve = [environment / "bin" / "ddmq", "serve", "--backend", "kafka", "--bootstrap", "127.0.0.1:1"]
    serve += ["--data-dir", folder / "none"]
    said = subprocess.run(serve, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    if said.returncode == 0 or MISSING not in said.stderr or "Traceback" in said.stderr:
        print(said.stdout + said.stderr)
        raise subprocess.CalledProcessError(said.returncode, serve)


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        wheel = build(folder)
        try:
            for extra in ("",) if "--plain" in arguments else ("", "[spark]", "[kafka]"):
                trial(wheel, extra, folder)
        except subprocess.CalledProcessError as error:
            print(f"the wheel is not whole: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
