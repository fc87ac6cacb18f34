"""The state folder: where things lie, who may write them, and the journal."""
