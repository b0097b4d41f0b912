"""Requests that a producer proxy carries out: sends, and changes of delayed messages."""
