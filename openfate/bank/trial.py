"""A model of CatBoost or XGBoost, loaded and tried where it can do no harm: a process of its own.

Their formats cannot be checked from outside.  `try_out` starts this file as a script, with limits
on time and memory; a crash, a hang or an error there is a refusal here.  It imports nothing of the
package, so that it starts in the time that CatBoost takes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_SECONDS = 60
_BYTES = 4 << 30  # of memory, and twenty times the file's size
_ROWS = 512


def try_out(name: str, content: bytes, n_classes: int) -> str | None:
    """What is wrong with a model; None where it loads and predicts.

    Parameters
    ----------
    name
        "catboost" or "xgboost".
    n_classes
        Columns of its probabilities; 0 for numbers.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        path.write_bytes(content)
        # WHY -P: the folder that the user stands in may hold a file that is called like a module.
        command = [sys.executable, "-P", __file__, name, str(path), str(n_classes)]
        try:
            done = subprocess.run(
                command,
                timeout=_SECONDS,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd=folder,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it does not load and predict within {_SECONDS} seconds"
    if done.returncode < 0:
        return f"it crashes the process that loads it (signal {-done.returncode})"
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return last[0][:200] if last else "it cannot be loaded"
    return None


def load_catboost(content: bytes, n_classes: int) -> Any:
    """A model of CatBoost's own format."""
    import catboost

    model = catboost.CatBoostClassifier() if n_classes else catboost.CatBoostRegressor()
    model.load_model(blob=content, format="cbm")
    return model


def load_xgboost(content: bytes, n_classes: int) -> Any:
    """A model of XGBoost's JSON."""
    import xgboost

    model = xgboost.XGBClassifier() if n_classes else xgboost.XGBRegressor()
    model.load_model(bytearray(content))
    return model


LOADERS = {"catboost": load_catboost, "xgboost": load_xgboost}


def _limit(size: int) -> None:
    import resource

    limits = {
        resource.RLIMIT_AS: _BYTES + 20 * size,
        resource.RLIMIT_CPU: _SECONDS,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
    }
    for what, most in limits.items():
        _, hard = resource.getrlimit(what)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (least, least))


def _try(name: str, path: str, n_classes: int) -> None:
    """Load, and predict rows of zeros, of large and small numbers, of none, and of any."""
    content = Path(path).read_bytes()
    _limit(len(content))
    import numpy as np

    model = LOADERS[name](content, n_classes)
    of_text = set(model.get_cat_feature_indices()) if name == "catboost" else set()
    n_columns = len(model.feature_names_) if name == "catboost" else model.n_features_in_
    rng = np.random.default_rng(0)
    sizes = 10.0 ** rng.integers(-4, 5, size=(_ROWS, 1))
    rows = (sizes * rng.normal(size=(_ROWS, n_columns))).astype(object)
    rows[:4] = np.array([[0.0], [1e30], [-1e30], [np.nan]])
    for column in of_text:
        rows[:, column] = [f"value {at}" for at in range(_ROWS)]
    rows = rows if of_text else rows.astype(float)
    found = np.asarray(model.predict_proba(rows) if n_classes else model.predict(rows))
    wanted = (_ROWS, n_classes) if n_classes else (_ROWS,)
    if found.shape != wanted or not np.isfinite(found).all():
        sys.exit(f"it predicts {found.shape}, not {wanted}, or what is no number")


if __name__ == "__main__":
    _try(sys.argv[1], sys.argv[2], int(sys.argv[3]))
