"""The machine: processes, sockets, GPUs, leases. Side effects and readings, no decisions."""
