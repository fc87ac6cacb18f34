"""vLLM as an outside thing, and the only room that knows its words."""
