"""Measuring a server: the load, what it gave, and what may be said about it."""
