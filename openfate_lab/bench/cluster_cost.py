"""What a step of training on many workers costs: a model of it, fitted to measured steps.

The seconds of a step of B rows, d fields, S masks, over a table of width C, on R workers:

    T = fixed + a cells + b ids + c stepped + e bytes            (all of one worker)

    cells     S B d C / R: what forward and backward go through
    ids       what a worker sorts: the ids of the whole mini-batch, B d, where embeddings are
              replicated, to know what is exchanged; of its part where they are sharded
    stepped   S C times the embeddings that it copies and steps: U where they are replicated; those
              of its part, and a share 1 / R of U, where they are sharded
    bytes     what one worker sends, see `step_bytes`

The constants are those of one machine and of what connects its workers: `fit` finds them from
measured steps, all of them from 0 up.  `simulate` puts steps of other sizes together, on other
machines: a link of so many bytes a second and so long a wait for each exchange.

N workers R, U distinct features in B rows.  Numpy alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from scipy.optimize import nnls

Embeddings = Literal["replicated", "sharded"]


@dataclass(frozen=True)
class Step:
    """The sizes of a step.

    Parameters
    ----------
    workers, rows, fields
        R, B and d.
    width
        C, of an embedding.
    touched, touched_part
        U: distinct features in the B rows, and in the B / R rows of one worker.
    weights
        Numbers of backbone and extrapolator.
    masks
        S: exchanges of gradients in a step.
    embeddings
        How they are kept.
    """

    workers: int
    rows: int
    fields: int
    width: int
    touched: int
    touched_part: int
    weights: int
    masks: int = 5
    embeddings: Embeddings = "replicated"

    @property
    def cells(self) -> float:
        """Numbers that one worker goes through."""
        return self.masks * self.rows * self.fields * self.width / self.workers

    @property
    def ids(self) -> float:
        """Ids that one worker sorts."""
        n_parts = self.workers if self.embeddings == "sharded" else 1
        return self.rows * self.fields / n_parts

    @property
    def stepped(self) -> float:
        """Numbers of embeddings that one worker copies and steps."""
        n_rows = float(self.touched)
        if self.embeddings == "sharded":
            n_rows = self.touched_part + self.touched / self.workers
        return self.masks * self.width * n_rows


def touched_features(rows: int, fields: int, features: int, skew: float = 1.05) -> float:
    """U: the distinct features that B rows of d cells have, each field's values by Zipf's law.

    Parameters
    ----------
    features
        D of all fields.
    skew
        The exponent; 0: all values are as frequent.

    Examples
    --------
    >>> round(touched_features(10, 1, 10, skew=0.0), 2)  # 10 (1 - .9^10)
    6.51
    """
    n = max(1, features // fields)
    # Ranks in steps that grow: the sum over 10^9 of them is one over thousands.
    edges = np.unique(np.round(np.geomspace(1, n + 1, 4000)).astype(np.int64))
    low, high = edges[:-1].astype(float), edges[1:].astype(float)
    middle = (low + high - 1) / 2
    p = middle**-skew
    p /= (p * (high - low)).sum()
    met = -np.expm1(rows * np.log1p(-np.minimum(p, 1 - 1e-12)))
    return float(fields * (met * (high - low)).sum())


def step_bytes(step: Step) -> float:
    """Bytes that one worker sends in a step; as many come.

    Weights and replicated embeddings: a ring sends 2 (R - 1) / R of what is added up.  Sharded: of
    the rows that its part touches, (R - 1) / R are owned by others; they are asked for (8 bytes an
    id) and come once before the first mask, and at every mask gradients go and new rows come.

    Examples
    --------
    >>> step_bytes(Step(1, 1000, 20, 8, 5000, 5000, 700))
    0.0
    """
    R = step.workers
    away = (R - 1) / R
    weights = 2 * away * step.weights * (step.masks + 1)  # at most: the extrapolator's once
    if step.embeddings == "replicated":
        rows = 2 * away * step.touched * step.width * step.masks
    else:
        rows = away * step.touched_part * (step.width * (2 * step.masks + 1) + 2)
    return 4 * (weights + rows)


@dataclass(frozen=True)
class Cost:
    """Seconds of a step, and of each thing that it has many of."""

    fixed: float
    cell: float
    id: float
    stepped: float
    byte: float

    def compute(self, step: Step) -> float:
        """Seconds of a step of one worker that sends nothing."""
        many = self.cell * step.cells + self.id * step.ids + self.stepped * step.stepped
        return self.fixed + many

    def seconds(self, step: Step) -> float:
        """Seconds of a step of one worker."""
        return self.compute(step) + self.byte * step_bytes(step)


def fit(steps: Sequence[Step], seconds: Sequence[float]) -> Cost:
    """The constants, from measured steps; relative errors count, none is negative.

    Examples
    --------
    >>> sizes = [(r, b, c) for r in (1, 2, 4) for b in (1000, 2000) for c in (8, 32)]
    >>> steps = [Step(r, b, 10, c, b // 2, b // 3, 100) for r, b, c in sizes]
    >>> cost = Cost(0.01, 1e-8, 2e-8, 1e-8, 1e-9)
    >>> fit(steps, [cost.seconds(step) for step in steps])
    Cost(fixed=0.01, cell=1e-08, id=2e-08, stepped=1e-08, byte=1e-09)
    """
    rows = np.array([[1.0, s.cells, s.ids, s.stepped, step_bytes(s)] for s in steps])
    measured = np.asarray(seconds, float)
    scale = rows.max(axis=0)
    scale[scale == 0] = 1.0
    found, _ = nnls(rows / scale / measured[:, None], np.ones(len(measured)))
    return Cost(*(float(f"{value:.3g}") for value in found / scale))


@dataclass(frozen=True)
class Machines:
    """What a projection assumes.

    Parameters
    ----------
    speed
        How many times as fast a worker goes through numbers as the measured one.
    link
        Bytes a second that a worker sends while it receives as many.
    wait
        Seconds that each exchange takes whatever its size, times log2 of the workers.
    """

    speed: float
    link: float
    wait: float


def simulate(cost: Cost, step: Step, machines: Machines) -> dict[str, Any]:
    """A step on other machines, part by part; computing and sending do not overlap.

    Examples
    --------
    >>> step = Step(64, 1 << 20, 39, 10, 4_000_000, 200_000, 300_000, embeddings="sharded")
    >>> found = simulate(Cost(0.0, 1e-9, 0.0, 0.0, 0.0), step, Machines(500.0, 1e9, 20e-6))
    >>> found["limit"]
    'network'
    """
    compute = cost.compute(step) / machines.speed
    send = step_bytes(step) / machines.link
    n_exchanges = step.masks * (1 if step.embeddings == "replicated" else 3) + 2
    wait = n_exchanges * machines.wait * np.log2(max(2, step.workers)) * (step.workers > 1)
    total = compute + send + float(wait)
    parts = {"compute": compute, "network": send, "waiting": float(wait)}
    return {
        **asdict(step),
        **parts,
        "seconds": total,
        "rows_per_second": step.rows / total,
        "limit": max(parts, key=lambda name: parts[name]),
    }
