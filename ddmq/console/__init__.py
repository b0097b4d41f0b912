"""The web console: pages that run in a browser and use the admin API of the server that they came from."""
