"""kdeploy: deploy tensor-parallel vLLM on a multi-GPU box."""

__version__ = "0.1.0"
