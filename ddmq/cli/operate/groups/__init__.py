"""Commands about consumer groups and their keys."""
