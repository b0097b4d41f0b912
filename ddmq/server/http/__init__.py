"""The HTTP of the admin port: connections, checks, routing, and a fair share of the event loop for each."""
