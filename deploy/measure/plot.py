"""The plots of a measurement as one PNG. The only file that needs matplotlib (kdeploy[plot])."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from deploy.errors import KdeployError, environment
from deploy.measure.report import charts


def png(document: Mapping[str, Any], path: str) -> None:
    """Write the plots of the sweep to `path`. Raises KdeployError: no sweep, or the file cannot be written."""
    wanted = charts(document)
    if not wanted:
        raise KdeployError("there is no sweep to plot", fix=["measure with --concurrency 1,2,4"])
    figure = Figure(figsize=(12, 8), layout="constrained")
    for axes, (title, unit, series) in zip(figure.subplots(2, 2).flat, wanted, strict=True):
        for name, points in series:
            axes.plot([x for x, _ in points], [y for _, y in points], marker="o", label=name)
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        axes.set(title=title, xlabel="concurrent requests", ylabel=unit)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(document["name"])
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise environment("the plot cannot be written", evidence=[f"{path}: {error.strerror}"]) from None
