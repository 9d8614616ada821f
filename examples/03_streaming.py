"""A stream: new values every day. The model observes them, explains itself, and absorbs them.

Run it with `python examples/03_streaming.py`; it takes some seconds.
"""

import numpy as np
import polars as pl

from openfate import FATEClassifier


def visits(n, day):
    """Visitors of two tastes; every day brings pages that were not there before."""
    rng = np.random.default_rng(day)
    taste = rng.integers(0, 2, n)
    hint = np.where(rng.random((3, n)) < 0.4, rng.integers(0, 2, (3, n)), taste)
    page = [f"page-{day}-{h}{k}" for h, k in zip(hint[0], rng.integers(0, 4, n), strict=True)]
    device = [f"device-{h}{k}" for h, k in zip(hint[1], rng.integers(0, 3, n), strict=True)]
    country = [f"country-{h}{k}" for h, k in zip(hint[2], rng.integers(0, 3, n), strict=True)]
    return pl.DataFrame({"page": page, "device": device, "country": country}), taste


train, y = visits(2000, day=0)
clf = FATEClassifier().fit(train, y)

# Every page of the first day is new. By the state alone the model cannot know them ...
today, y_today = visits(1000, day=1)
accuracy = np.mean(clf.predict(today, graph="state") == y_today)
print(f"day 1, nothing observed     {accuracy:.3f}")

# ... until it has observed rows that have them. No label is needed, nothing is trained.
clf.observe(today[:500])
later, y_later = today[500:], y_today[500:]
accuracy = np.mean(clf.predict(later, graph="state") == y_later)
print(f"day 1, 500 rows observed    {accuracy:.3f}")

# Labels come late, and sharpen what is known of the new pages.
clf.observe(today[:500], y_today[:500], seen=True)
accuracy = np.mean(clf.predict(later, graph="state") == y_later)
print(f"day 1, their labels too     {accuracy:.3f}")

# With graph="state" a row's prediction is the same alone and in any batch.
batch = clf.predict_proba(later[:20], graph="state")
alone = np.concatenate([clf.predict_proba(later[i], graph="state") for i in range(20)])
print(f"row by row as in a batch    {np.allclose(batch, alone, atol=1e-12)}")

# Which features pushed a prediction; new ones are marked.
print(clf.explain(later[:1], graph="state").select("field", "value", "new", "effect"))

# Once labels are there, new features become observed ones; what was forgotten is reported.
clf.refit(pl.concat([train, today]), np.concatenate([y, y_today]))
report = clf.refit_report_
print(f"absorbed {report['absorbed_features']} features")
print(f"log loss on the old validation rows: {report['before']['log_loss']:.3f} before, "
      f"{report['after']['log_loss']:.3f} after")  # fmt: skip
