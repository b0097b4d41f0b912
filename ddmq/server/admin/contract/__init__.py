"""The contract of the admin API: what each request may contain, and what its answer contains."""
