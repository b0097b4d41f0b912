"""Code that delay levels and delay stores share to fire messages when they are due."""
