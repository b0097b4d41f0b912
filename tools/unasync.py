"""Generate the blocking client's modules from the asyncio ones.

    python tools/unasync.py            write ddmq_client/net/NAME.py for each NAME in MODULES
    python tools/unasync.py --check    exit code 1, and a line for each that is not what would be written

`async` and `await` go, also from examples in docstrings, AsyncName becomes Name, `concurrency` the number of
`threads`, and what was imported from `aio` comes from `net`. What a thread does otherwise than a task stands
in `aio/sync.py` and `net/sync.py`, under the same names.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLIENT = ROOT / "ddmq_client"
MODULES = (
    "admin/client",
    "admin/pool",
    "broadcast",
    "checks",
    "consumer",
    "coordinator",
    "due_results",
    "fetching",
    "producer",
    "replying",
    "router",
    "sender",
    "transactions",
    "worker_pool",
)
HEADER = "# Generated from ddmq_client/aio/{0}.py by tools/unasync.py: change that one.\n"
# A method, or the file's last class, under this comment has no blocking form.
_ASYNC_ONLY = re.compile(
    r"^    # asyncio only\n    (async )?def .*?(?=^    (async def|def|@)|^\S|\Z)|(?<=\n)\n\n"
    r"# asyncio only\nclass .*\Z",
    re.M | re.S,
)
_WORDS = [
    (re.compile(pattern), blocking)
    for pattern, blocking in (
        (r"\basync (?=(with|for|def) )", ""),
        (r"\bawait (?=[\w(])", ""),
        (r"\bAsync(?=[A-Z])", ""),
        (r"\bconcurrency    ", "threads        "),
        (r"\bconcurrency\b", "threads"),
        (r"\b__a(enter|exit|iter)__", r"__\1__"),
        (r"\baclose\b", "close"),
        (r"\bddmq_client\.aio\.", "ddmq_client.net."),
    )
]


def translated(text: str) -> str:
    """The blocking form of asyncio code, not yet formatted."""
    text = _ASYNC_ONLY.sub("", text)
    for pattern, blocking in _WORDS:
        text = pattern.sub(blocking, text)
    return text


def generated(name: str) -> str:
    """What ddmq_client/net/NAME.py should hold."""
    text = HEADER.format(name) + translated((CLIENT / "aio" / f"{name}.py").read_text(encoding="utf-8"))
    for arguments in (
        ["check", "--fix-only", "--unsafe-fixes", "--quiet", "--select", "I,F401,UP028"],
        ["format"],
    ):
        command = [
            str(Path(sys.executable).parent / "ruff"),
            *arguments,
            "--stdin-filename",
            f"{name}.py",
            "-",
        ]
        done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT, check=True)
        text = done.stdout
    return text


def main(arguments: list[str]) -> int:
    stale = 0
    for name in MODULES:
        path, text = CLIENT / "net" / f"{name}.py", generated(name)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if arguments == ["--check"]:
            print(f"{path.relative_to(ROOT)} is not what tools/unasync.py makes of aio/{name}.py: run it")
        else:
            path.write_text(text, encoding="utf-8")
    return 1 if stale and arguments == ["--check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
