"""Who may connect to the ports of a server and how, and who may do what."""
