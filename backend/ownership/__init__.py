"""Ownership of queues: who owns which queue, and the work of an owner on its queues.

    memberships ──▶ table ──▶ group          the writer's side: it assigns queues to the members of groups
                     │ assigned, revoked, lost
                     ▼
    claims ──▶ owner ──▶ one QueueWork for each owned queue ──▶ reader        a member's side

group, table, memberships
    Decide which member of a group holds which queue. Pure: see table.py for the states of a queue.
claims
    QueueClaims follows one membership: which queues were granted, under which epoch, and what is recorded of
    them. It knows nothing of the work on a queue.
owner
    QueueOwner starts a QueueWork for each queue that it acquires, stops it when the queue is revoked or lost,
    and releases the queue when nothing of the work is under way any more. It drains and closes all of them
    together, and reacquires them when the outcome of a commit is uncertain.
reader
    QueueReader reads one queue: records, the end, a position that retention has deleted, or an error. It
    waits for data at the end, and notifies nobody after it was stopped.

Rules that hold for every owner:
* Nothing is done with a queue before it was granted, and every commit names the epoch of that grant.
* A queue is released once, and not while a commit of its work is under way: whoever gets the queue next reads
  what that commit came to.
* A queue that was lost is another's at once. Commits under way took effect before, or are fenced.
* An uncertain outcome, or a fenced commit, ends the claim: the owner leaves and joins again. The new epoch
  keeps the old commit out, or the progress that is then read includes it.
* A member that drains acquires nothing more. It leaves when the last work is idle.
"""
