"""Actions: the processing steps of a message between its queue and its sink; a pure core without I/O."""
