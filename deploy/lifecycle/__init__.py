"""States, phases, events and the transition table of a deployment. Pure: values in, values out."""
