"""Reading weights into the page cache ahead of the engine, in a process of its own."""
