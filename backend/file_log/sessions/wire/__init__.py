"""The session protocol: what both sides speak."""
