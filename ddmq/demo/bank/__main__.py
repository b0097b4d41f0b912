"""Runs the demo as `python -m ddmq.demo.bank`."""

from ddmq.demo.bank.story import bank

if __name__ == "__main__":
    bank()
