"""The process that evaluates scripts which may take long: `python -m proxy_consumer.push.script_worker FD`.

It reads one task after the other from a socket and replies to each. Its resource limits are set before it
reads anything: memory for the whole process, processor time for each task, whose timer ends the process at
any point, also inside the library. It ends with its parent process, whose end closes the socket.
"""

from __future__ import annotations

import resource
import signal
import socket
import struct
import sys
from typing import Any

import msgspec

from proxy_consumer.push.actions.config import ScriptConfig
from proxy_consumer.push.actions.job import ABSENT, ActionJob, Ending, compact_json
from proxy_consumer.push.actions.script import Script, ScriptError
from proxy_consumer.push.actions.steps import parse

MEMORY_BYTES_MAX = 1 << 30
CPU_S_MAX = 1.0  # processor time of one task
LENGTH = struct.Struct(">I")
SCRIPTS_MAX = 64  # compiled scripts in the cache


class ScriptTask(msgspec.Struct):
    """A message and the scripts to run on it, for the worker process.

    `json`: the parsed body as JSON text; None before the action Json.
    """

    filter: str
    transform: str
    after_json: bool
    key: bytes
    tag: bytes
    body: bytes
    properties: dict[bytes, bytes]
    json: bytes | None


class ScriptAnswer(msgspec.Struct):
    """The worker process's answer to a ScriptTask.

    `passed`: the message passed the filter; `error`: a script error; `json`: the result of transform.
    """

    passed: bool = False
    error: str = ""
    json: bytes | None = None


def run_task(task: ScriptTask, scripts: dict[tuple[str, str, bool], Script]) -> ScriptAnswer:
    """Run the script on the message; `scripts` caches compiled scripts. Raises MemoryError, which ends the
    process."""
    job = ActionJob(task.key, task.tag, task.body, task.properties)
    try:
        if task.json is not None:
            job.json = parse_json(task.json)
        name = (task.filter, task.transform, task.after_json)
        if name not in scripts:
            if len(scripts) >= SCRIPTS_MAX:
                scripts.clear()
            config = ScriptConfig(filter=task.filter, transform=task.transform)
            scripts[name] = Script(config, after_json=task.after_json)
        continues = scripts[name].run(job).ending is Ending.CONTINUE
        transformed = compact_json(job.json).encode() if continues and task.transform else None
    except (ScriptError, ValueError, RecursionError) as error:
        return ScriptAnswer(error=str(error))
    return ScriptAnswer(continues, "", transformed)


def parse_json(text: bytes) -> Any:
    """Parse a JSON text from the other process as the action Json does."""
    job = ActionJob(b"", b"", text, {})
    parse(job)
    return None if job.json is ABSENT else job.json


def serve_connection(connection: socket.socket) -> None:
    """Reply to tasks until the other side closes the connection."""
    tasks, encode = msgspec.msgpack.Decoder(ScriptTask), msgspec.msgpack.encode
    scripts: dict[tuple[str, str, bool], Script] = {}
    stream = connection.makefile("rwb")
    while len(head := stream.read(LENGTH.size)) == LENGTH.size:
        task = tasks.decode(stream.read(LENGTH.unpack(head)[0]))
        signal.setitimer(signal.ITIMER_PROF, CPU_S_MAX)
        answer = encode(run_task(task, scripts))
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        stream.write(LENGTH.pack(len(answer)) + answer)
        stream.flush()


def main() -> None:
    """Run the worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.setblocking(True)
    serve_connection(connection)


if __name__ == "__main__":
    main()
