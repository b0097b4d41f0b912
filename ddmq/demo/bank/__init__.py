"""The bank transfer of docs/transactions.md: two services, two ledgers, everything killed at random.

    python -m ddmq.demo.bank
    python -m ddmq.demo.bank --transfers 20 --kills 3

`service` is what an application would write; `story` starts it twice beside a server, kills all three with
SIGKILL again and again, and proves in the end that no money was made or lost.
"""
