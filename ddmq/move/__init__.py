"""Copies an installation to another engine: the command `ddmq move`, over the backend port (docs/kafka.md).

core/       decides: what a copy looks like, which offset is which, what belongs to a move
copier.py   copies one queue                        messages.py  copies all queues, repeatedly
progress.py records in the target how far a move is   finish.py  the last step    verify.py  compares
delays.py   pending delays and outcomes               engines.py  opens both sides
"""
