"""What may happen to a job in each state, and that everything else raises and changes nothing."""

from __future__ import annotations

import pytest

from proxy_consumer.core.jobs import TRANSITIONS, IllegalJobEventError, JobEvent, JobState, JobTable
from proxy_consumer.core.tally import Budget

ILLEGAL = [(state, event) for state, row in TRANSITIONS.items() for event in JobEvent if event not in row]
LEGAL = [(state, event) for state, row in TRANSITIONS.items() for event in row]


def table_state(table: JobTable, budget: Budget) -> tuple[object, ...]:
    """All that a table shows."""
    jobs = {offset: (job.state, job.due, job.reason) for offset, job in table.jobs.items()}
    counts = (table.retrying, table.recorded, table.released, budget.retrying)
    return jobs, counts, list(table.ready), list(table.spent), table.next_due()


@pytest.mark.parametrize(("state", "event"), ILLEGAL, ids=lambda one: one.name)
def test_what_cannot_happen_raises_and_changes_nothing(state: JobState, event: JobEvent) -> None:
    budget = Budget()
    table = JobTable(budget)
    job = table.add(7, state)
    before = table_state(table, budget)
    with pytest.raises(IllegalJobEventError, match=f"{state.name} was {event.name}"):
        table.change(job, event)
    assert table_state(table, budget) == before


@pytest.mark.parametrize(("state", "event"), LEGAL, ids=lambda one: one.name)
def test_counts_follow_the_states(state: JobState, event: JobEvent) -> None:
    budget = Budget()
    table = JobTable(budget)
    job = table.add(7, state)
    table.change(job, event)
    following = TRANSITIONS[state][event]
    assert job.state is following
    assert (7 in table.jobs) == (following is not JobState.REMOVED)
    assert budget.retrying == table.retrying == (following.name in ("WAITING", "READY", "SPENT", "EXHAUSTED"))
    assert table.recorded == (following is JobState.RECORDED)
    assert table.released == (following is JobState.RELEASED)


def test_whoever_waits_or_is_spent_without_a_right_to_leaves_no_trace() -> None:
    budget = Budget()
    table = JobTable(budget)
    spent = table.add(7, JobState.SPENT)
    before = table_state(table, budget)
    for change in (
        lambda: table.wait(spent, 5.0),
        lambda: table.spend_job(spent, "again"),
        lambda: table.make_ready(spent, JobEvent.DUE),
        lambda: table.return_to_chain(spent),
    ):
        with pytest.raises(IllegalJobEventError):
            change()
        assert table_state(table, budget) == before


def test_every_state_is_reached_and_every_job_can_end() -> None:
    begun = {JobState.PLAIN, JobState.RECORDED, JobState.LEASED}
    following = {after for row in TRANSITIONS.values() for after in row.values()}
    assert begun | following == set(JobState) == set(TRANSITIONS)
    for state in set(JobState) - {JobState.REMOVED}:
        visited, todo = set(), [state]
        while todo:
            one = todo.pop()
            if one not in visited:
                visited.add(one)
                todo += TRANSITIONS[one].values()
        assert JobState.REMOVED in visited, state
