"""The writer's side of sessions."""
