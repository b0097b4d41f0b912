"""Who may connect to the ports of a server, and how: settings and certificates."""
