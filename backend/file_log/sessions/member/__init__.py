"""The member's side of sessions."""
