"""Actions: what a message goes through between its queue and its sink; a pure core without I/O."""
