"""A table of your own: kinds of columns, policies, a report of what changed, a bundle on disk.

Run it with `python examples/02_own_table.py`; it takes some seconds.
"""

import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from sklearn.datasets import load_wine

from openfate import FATEClassifier, Field, load
from openfate.errors import InputError

# 178 wines, 13 measurements and the cellar each came from; here the cellars have names.
data = load_wine()
wines = pl.DataFrame(data.data, schema=[str(name) for name in data.feature_names])
cellar = np.array(["Alba", "Barolo", "Cuneo"])[data.target]
train, later = wines[::2], wines[1::2]

# Kinds are guessed from the columns; where the guess is wrong, a Field says better.
clf = FATEClassifier(
    schema=[Field("alcohol", "numeric", n_buckets=5)],
    exclude=["ash"],  # never used, also when it comes back later
    new_columns={"proline": "ignore", "*": "extrapolate"},
    missing_columns={"alcohol": "error"},
)
clf.fit(train.select(wines.columns[:9]), cellar[::2])  # nine columns of thirteen
print(f"classes: {clf.classes_}, columns: {len(clf.feature_names_in_)}")

# What would happen to a frame, before anything happens: per column, with the reason.
report = clf.schema_report(later.drop("hue"))
print(f"\n{report}\n")
for column in report.columns[-2:]:
    print(f"{column.name}: {column.why}")

# Policies are kept: a frame without alcohol is refused.
try:
    clf.predict(later.drop("alcohol"))
except InputError as error:
    print(f"\nrefused: {error}")

# A bundle is a folder of plain files; loading it runs no code and needs no training data.
with tempfile.TemporaryDirectory() as folder:
    clf.save(Path(folder) / "wines")
    print("\nbundle:", ", ".join(sorted(path.name for path in Path(folder, "wines").glob("*-*"))))
    again = load(Path(folder) / "wines")

same = bool((again.predict_proba(later) == clf.predict_proba(later)).all())
print(f"the same probabilities after loading: {same}")
print(f"accuracy: {clf.score(later, cellar[1::2]):.3f}")
