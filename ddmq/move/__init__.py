"""Copies an installation to another engine: the command `ddmq move`, over the backend port (docs/kafka.md).

core/       decides: what a copy looks like, which offset is which, what belongs to a move
copier.py   copies one queue    messages.py  all of them, also again and again
notes.py  what stands in the target about a move    finish.py  the last step    verify.py  compares
delays.py   pending delays and outcomes               engines.py  opens both sides
"""
