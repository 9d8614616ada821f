"""Two columns appear after training, and the model uses them: nothing is trained again.

Run it with `python examples/01_quickstart.py`; it takes some seconds.
"""

import numpy as np
import polars as pl

from openfate import FATEClassifier


def visits(n, seed):
    """Visitors of two tastes: every column hints at the taste, none of them tells it surely."""
    rng = np.random.default_rng(seed)
    taste = rng.integers(0, 2, n)

    def column(noise):
        hint = np.where(rng.random(n) < noise, rng.integers(0, 2, n), taste)
        return [
            "ab"[kind] + str(number)
            for kind, number in zip(hint, rng.integers(0, 3, n), strict=True)
        ]

    known = {name: column(0.6) for name in ("page", "device", "country", "browser")}
    return pl.DataFrame(known | {name: column(0.4) for name in ("campaign", "shop")}), taste


train, y = visits(2000, seed=0)
later, y_later = visits(1000, seed=1)

known = ["page", "device", "country", "browser"]
clf = FATEClassifier().fit(train.select(known), y)  # four columns

print(clf.schema_report(later))  # six columns: two are new
used = clf.predict(later)  # by default what is new is used ...
dropped = clf.predict(later, new_features="drop")  # ... and this is what it is worth

print(f"\naccuracy with the new columns  {np.mean(used == y_later):.3f}")
print(f"accuracy without them          {np.mean(dropped == y_later):.3f}")
