"""What people use today in our place, started here under the same load as ours; `ddmq bench peers`.

system.py (a system that is started and gone afterwards), programs.py (servers of others) ← queued.py (a
system as a queue, and ours), queues_of_others.py, kafka.py ← queues.py (the work on queues); delayed.py
(systems with due times) ← delays.py (the work on delays); summary.py (the tables and the picture of both).
"""
