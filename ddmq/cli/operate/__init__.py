"""Commands of operators; each asks the admin port."""
