"""Examining a host before the long wait: checks that read and never change anything."""
