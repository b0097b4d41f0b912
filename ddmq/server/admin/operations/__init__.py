"""Operations on everything that matches a filter: plans, and runs that survive a restart."""
