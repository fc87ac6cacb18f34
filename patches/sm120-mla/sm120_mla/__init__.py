"""Multi-head latent attention in Triton for capability 12.0: one kernel family, dense and sparse.

`kernels` holds the device code, `attention` starts it, `chooser` picks block sizes and splits, `layouts` knows the
three caches, `reference` is the fp64 answer that everything is held against. `sparse`, `dense` and `register` are
the vLLM side; the rest imports torch and triton only.
"""
