"""The lag of a subscription: how fast it changes, and what keeps it from falling."""
