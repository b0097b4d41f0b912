"""Evaluates scripts that may take long in processes that can be stopped; only the calling greenlet waits.

There are at most WORKERS_MAX processes, started at first need; further tasks wait for one of them. A process
that exceeds its memory or processor time ends by itself; one that does not reply in time is killed. Either is
a script error of that message, and is counted; the next task gets a new process. If a process was killed from
outside, which says nothing about the message, the same task is repeated in a new process.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import Any

import gevent
import msgspec
from gevent import socket
from gevent.lock import BoundedSemaphore

from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry
from proxy_consumer.push.actions.config import ScriptConfig
from proxy_consumer.push.actions.job import ABSENT, CONTINUE, ActionJob, ActionOutcome, compact_json
from proxy_consumer.push.actions.script import FILTERED, ScriptError
from proxy_consumer.push.script_worker import (
    CPU_S_MAX,
    LENGTH,
    MEMORY_BYTES_MAX,
    ScriptAnswer,
    ScriptTask,
    parse_json,
)

WORKERS_MAX = 2
TRIES_MAX = 2  # attempts of a task whose process is killed from outside
END_S_MAX = 0.2  # time for a process to end by itself after its socket is closed
POLL_INTERVAL_S = 0.002
ANSWER_S_MAX = 30.0  # for a machine so busy that the limit on processor time is not reached
_ANSWERS = msgspec.msgpack.Decoder(ScriptAnswer)


class _Worker:
    def __init__(self) -> None:
        own_end, child_end = socket.socketpair()
        self.sock: Any = own_end
        self.killed = False  # by this proxy
        command = [sys.executable, "-m", "proxy_consumer.push.script_worker", str(child_end.fileno())]
        nothing = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, pass_fds=(child_end.fileno(),), stdin=nothing, stdout=nothing, stderr=nothing
        )
        child_end.close()

    def run_task(self, task: bytes) -> ScriptAnswer:
        """Send a task to the process and return its reply. Raises OSError or EOFError if the process has
        ended."""
        self.sock.sendall(LENGTH.pack(len(task)) + task)
        return _ANSWERS.decode(self._read(LENGTH.unpack(self._read(LENGTH.size))[0]))

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            more = self.sock.recv(min(count - len(data), 1 << 16))
            if not more:
                raise EOFError
            data += more
        return bytes(data)

    def end(self, patience_s: float = END_S_MAX) -> int:
        """Wait until the process ends, kill it after `patience_s`, and return its exit code (negative: a
        signal).

        Other greenlets run meanwhile.
        """
        self.sock.close()
        give_up = time.monotonic() + patience_s
        while (code := self._process.poll()) is None:
            if time.monotonic() >= give_up:
                self.killed = True
                self._process.kill()
            gevent.sleep(POLL_INTERVAL_S)
        return code


class ScriptWorkers:
    """The pool of processes in which one proxy runs the scripts of push subscriptions."""

    def __init__(self, metrics: Registry) -> None:
        self._permits = BoundedSemaphore(WORKERS_MAX)
        self._idle: list[_Worker] = []
        self._terminations = metrics.cell(catalogue.SCRIPTS_ENDED)
        self._closed = False

    def close(self) -> None:
        """End the idle processes; the others end after their task."""
        self._closed = True
        while self._idle:
            self._idle.pop().end()

    def run(self, config: ScriptConfig, job: ActionJob, after_json: bool) -> ActionOutcome:
        """Filter and transform a message in a process; the calling greenlet waits. Raises ScriptError."""
        json = None if job.json is ABSENT else compact_json(job.json).encode()
        task = ScriptTask(
            config.filter,
            config.transform,
            after_json,
            job.key,
            job.tag,
            job.body,
            dict(job.properties),
            json,
        )
        with self._permits:
            answer = self._run_task(msgspec.msgpack.encode(task))
        if answer.error:
            raise ScriptError(answer.error)
        if not answer.passed:
            return FILTERED
        if answer.json is not None:
            job.json = parse_json(answer.json)
        return CONTINUE

    def _run_task(self, task: bytes) -> ScriptAnswer:
        for _ in range(TRIES_MAX):
            answer = self._try_worker(task)
            if answer is not None:
                return answer
        raise ScriptError("its process was killed repeatedly from outside")

    def _try_worker(self, task: bytes) -> ScriptAnswer | None:
        """Run a task in a process; return None if the process was killed from outside. Raises ScriptError."""
        worker = self._idle.pop() if self._idle else _Worker()
        reusable = False
        try:
            with gevent.Timeout(ANSWER_S_MAX):
                answer = worker.run_task(task)
            reusable = True
            return answer
        except gevent.Timeout:
            self._terminations.value += 1
            worker.end(0.0)
            raise ScriptError(f"it did not answer within {ANSWER_S_MAX:g} s and was ended") from None
        except (OSError, EOFError):
            self._terminations.value += 1
            code = worker.end()
            if worker.killed:
                raise ScriptError(f"its process hung up and was ended {END_S_MAX:g} s later") from None
            if code in (-signal.SIGKILL, -signal.SIGTERM):
                return None
            raise ScriptError(_describe_exit(code)) from None
        finally:
            if reusable and not self._closed:
                self._idle.append(worker)
            else:
                worker.end()


def _describe_exit(code: int) -> str:
    if code == -signal.SIGPROF:
        return f"it takes more than {CPU_S_MAX:g} s of CPU time and was ended"
    return f"its process ended ({code}), most likely for want of more than {MEMORY_BYTES_MAX >> 20} MiB"
