"""When a delay command fires, and when again: the occurrences of every kind of delay message. Pure.

Occurrence 0 is the first. A number determines its due time (`due_ms` of occurrences.py) and its id, numbers
and due times only grow together, and what comes after one is a function of the command, the number and the
clock (`next_after`), so that whoever knows the last number fired goes on as if nothing had happened. Each
kind counts its own way (loops.py, schedules.py), by large steps too; `delivered_before` says how many fired.
Where a count must rise above 0 with the first occurrence, as attempts do, keep occurrence + 1.

`next_after` costs the same however much was missed: a loop that started in 2001 is not walked through.
"""
