"""Numbers and several labels as targets; numbers as buckets or as values; scikit-learn's tools.

Run it with `python examples/04_regression_and_multilabel.py`; it takes some seconds.
"""

import numpy as np
import polars as pl
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import GridSearchCV, cross_val_score

from openfate import FATEClassifier, FATERegressor

# ---- regression: how a disease went on, from ten measurements of 442 patients ------------------

data = load_diabetes()
patients = pl.DataFrame(data.data, schema=data.feature_names)
train, later = patients[:300], patients[300:]
y, y_later = data.target[:300], data.target[300:]

reg = FATERegressor(numeric="value").fit(train.drop("s5", "s6"), y)
error = np.mean(np.abs(reg.predict(later) - y_later))  # with two blood values that are new
dropped = np.mean(np.abs(reg.predict(later, new_features="drop") - y_later))
print(f"mean absolute error: {error:.1f}, without the new columns {dropped:.1f}, "
      f"of the mean {np.mean(np.abs(y.mean() - y_later)):.1f}")  # fmt: skip

# The median instead of the mean, less drawn to extremes:
reg = FATERegressor(numeric="value", loss="absolute_error").fit(train, y)
print(f"mean absolute error of medians: {np.mean(np.abs(reg.predict(later) - y_later)):.1f}")

# It is an estimator like any other:
search = GridSearchCV(FATERegressor(epochs=20), {"numeric": ["buckets", "value"]}, cv=2)
print("best:", search.fit(train.to_numpy(), y).best_params_)
r2 = cross_val_score(FATERegressor(epochs=20, numeric="value"), train.to_numpy(), y, cv=2)
print(f"R2 by cross-validation: {r2.mean():.2f}")

# ---- several labels: is a digit even, and is it above four? ------------------------------------

digits = load_digits()
pixels = pl.DataFrame(digits.data, schema=[f"pixel {i // 8},{i % 8}" for i in range(64)])
labels = np.stack([digits.target % 2 == 0, digits.target > 4], axis=1).astype(int)

clf = FATEClassifier(epochs=20).fit(pixels[:1200, ::2], labels[:1200])  # every other pixel
p = clf.predict_proba(pixels[1200:, ::2])
right = (p > 0.5) == labels[1200:]
print(f"even: {right[:, 0].mean():.3f}, above four: {right[:, 1].mean():.3f}, shape {p.shape}")
