"""Swap: one deployment replaced by another as a transaction that survives the death of whoever carries it out."""
