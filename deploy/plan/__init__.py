"""LaunchPlan, and the decisions that make one. Pure but for what is handed in."""
