"""The `sitecustomize.py` of a patch folder that has overlays: install the hook, then run the one that it hides."""

TEXT = '''\
"""Installs the import hook of kdeploy's overlays, then runs the sitecustomize that this one hides."""

import importlib.machinery
import importlib.util
import os
import sys

import kdeploy_patch_hook

kdeploy_patch_hook.install()

_here = os.path.dirname(os.path.abspath(__file__))
_rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != _here]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _rest)
if _spec is not None and _spec.loader is not None:
    _module = importlib.util.module_from_spec(_spec)
    sys.modules["sitecustomize"] = _module
    _spec.loader.exec_module(_module)
'''
