"""What is on disk of a model: its weight files, in the loader's order, and whether they are whole."""
