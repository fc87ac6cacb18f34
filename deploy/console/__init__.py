"""The same events three ways: plain lines, a live region on a terminal, JSON. Nothing below the console prints."""
