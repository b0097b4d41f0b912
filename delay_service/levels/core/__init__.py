"""What the levels decide; no clock, no hub, no backend calls."""
