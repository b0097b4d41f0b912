"""Carries a SendJob to its end over the producer's connections."""

from __future__ import annotations

from collections.abc import Callable

from ddmq_client.aio.router import AsyncProxyRouter
from ddmq_client.aio.sync import now
from ddmq_client.core import verdicts
from ddmq_client.core.frames import FrameError
from ddmq_client.core.nodes import Node
from ddmq_client.core.sending import SendJob
from ddmq_client.core.verdicts import CallFailed, CallVerdict
from ddmq_client.errors import BusyError, ClosedError, NotStoredError
from ddmq_client.outgoing import SendResult
from ddmq_client.wire.producing import ProxyFault, read_results

ONEWAY_ATTEMPTS = 4
UNRESOLVED = "no proxy address is known: no name resolves"


class AsyncJobSender:
    """Runs jobs, each where it is called. Safe for many threads."""

    def __init__(self, router: AsyncProxyRouter) -> None:
        self._router = router

    async def run(self, job: SendJob) -> list[SendResult]:
        """All results, within the job's deadline."""
        router = self._router
        try:
            while True:
                node = await router.pick(job.tried, job.deadline)
                if node is None:
                    job.gave_up(NotStoredError(UNRESOLVED))
                    return job.results
                job.begin(node, router.recognises())
                elsewhere = await self._attempt(job, node)
                wait = job.next_wait(now(), elsewhere)
                if wait is None:
                    return job.results
                if wait:
                    await router.pause(wait)
        except BusyError as error:
            job.gave_up(error)
        except ClosedError as error:
            job.gave_up(NotStoredError(str(error)))
        finally:
            job.end()
        return job.results

    async def oneway(self, make_frame: Callable[[float, int], bytes], deadline: float) -> None:
        """Write a request that has no answer; NotStoredError where it could not be written."""
        tried: set[Node] = set()
        failure = NotStoredError(UNRESOLVED)
        for _ in range(ONEWAY_ATTEMPTS):
            node = await self._router.pick(tried, deadline)
            if node is None or now() >= deadline:
                break
            tried.add(node)
            try:
                await self._write(node, make_frame, deadline)
                return
            except CallFailed as error:
                failure = NotStoredError(error.text, None, node.name)
                self._router.note(node, error.verdict, tried)
        raise failure

    async def _attempt(self, job: SendJob, node: Node) -> bool:
        """One attempt; True where a node in rotation is still untried."""
        try:
            results = await self._exchange(job, node)
        except CallFailed as failure:
            return self._failed(job, node, failure.verdict, failure.text)
        except FrameError as error:
            return self._failed(job, node, CallVerdict.LOST, f"{error} (from {node.name})")
        except ProxyFault as fault:
            return self._failed(job, node, verdicts.of_fault(fault.kind), str(fault))
        stored = all(result.code == 0 for result in results)
        elsewhere = not stored and self._router.has_fresh(job.tried)
        verdict = job.answered(node, results, elsewhere)
        if verdict is CallVerdict.STORED and node.well:
            return False
        return self._router.note(node, verdict, job.tried)

    def _failed(self, job: SendJob, node: Node, verdict: CallVerdict, text: str) -> bool:
        elsewhere = self._router.note(node, verdict, job.tried)
        job.failed(node, verdict, text, elsewhere)
        return elsewhere

    async def _exchange(self, job: SendJob, node: Node) -> list[SendResult]:
        connection = await self._router.lease(node, job.deadline)
        try:
            deadline = job.attempt_deadline(now())
            payload, sequence_id = await connection.call(job.frame, deadline)
            return read_results(payload, sequence_id, job.method)
        except FrameError:
            connection.close()  # what comes next on it cannot be trusted
            raise
        finally:
            self._router.give_back(node, connection)

    async def _write(self, node: Node, make_frame: Callable[[float, int], bytes], deadline: float) -> None:
        connection = await self._router.lease(node, deadline)
        try:
            await connection.send_only(make_frame, deadline)
        finally:
            self._router.give_back(node, connection)
