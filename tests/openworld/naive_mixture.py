"""A slow, obvious twin of the mixture's weights: one row, one gate, one expert at a time."""

from __future__ import annotations

import math


def weigh_rows(likelihood, rest_of, prior, prior_of_ignoring, share):
    """Weights after all rows, the posterior of ignoring, and both losses in total.

    Parameters
    ----------
    likelihood
        Of each row, what each expert gave to what happened; the first ignores.
    rest_of
        Of a row and weights: what the rest, taken as one, gave to it.
    """
    weights, ignoring, loss, loss_of_ignoring = list(prior), prior_of_ignoring, 0.0, 0.0
    for at, row in enumerate(likelihood):
        rest = rest_of(at, weights)
        mixed = ignoring * row[0] + (1 - ignoring) * rest
        loss -= math.log(mixed)
        loss_of_ignoring -= math.log(row[0])
        ignoring = ignoring * row[0] / mixed
        joint = [w * p for w, p in zip(weights, row, strict=True)]
        weights = [
            (1 - share) * j / sum(joint) + share * p for j, p in zip(joint, prior, strict=True)
        ]
    return weights, ignoring, loss, loss_of_ignoring
