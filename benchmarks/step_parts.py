"""Where a step of `uci-robot` spends its time, each part timed in place: writes robot-step.json.

    PYTHONPATH=. python benchmarks/step_parts.py OUT.json

Parts are functions of the package, wrapped by a clock while `train` runs; what a part calls is in
it.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from typing import Any

import torch

from openfate.models import backbone, fate
from openfate.training import Settings, engine, optim, train
from openfate_lab.bench.cases import CASES
from openfate_lab.bench.record import about

EPOCHS, STEPS = 120, 5  # steps an epoch
PARTS: dict[str, tuple[Any, str]] = {
    "draw and apply DropEdge": (engine, "drop_edges"),
    "hide, walk, product of weights": (fate.FATE, "_complete"),
    "sums at rows": (backbone.Backbone, "sums"),
    "network": (backbone.MLP, "forward"),
    "loss": (engine, "mean_loss"),
    "back through all of it": (torch.Tensor, "backward"),
    "Adam": (optim.LeanAdam, "step"),
}


def main() -> None:
    torch.set_num_threads(1)
    case, seconds = CASES["uci-robot"], defaultdict[str, list[float]](list)
    X, y = case.table()
    train(case.model(), X, y, Settings(epochs=5))  # warm up

    def timed(part: str, work: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            out = work(*args, **kwargs)
            seconds[part].append(time.perf_counter() - started)
            return out

        return run

    for part, (owner, name) in PARTS.items():
        setattr(owner, name, timed(part, getattr(owner, name)))
    train(case.model(), X, y, Settings(epochs=EPOCHS))
    lower = {part: sorted(found)[len(found) // 4] for part, found in seconds.items()}
    found = {part: round(lower[part] * 1e6, 1) for part in PARTS}
    result = {"bench": "step", **about("cpu"), "case": "uci-robot", "n_steps": EPOCHS * STEPS}
    result["unit"] = "microseconds a call, lower quartile"
    result["rows"] = [{"part": part, "microseconds": us} for part, us in found.items()]
    with open(sys.argv[1], "w") as file:
        file.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
