"""How many messages waited, when: one step function for each subscription over all processes."""
