"""Patches: which there are, whether they are needed, the folder that carries them into an engine, and its proof."""
