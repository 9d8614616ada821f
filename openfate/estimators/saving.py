"""From a bundle to the estimator that it was, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openfate.bank import FeatureBank
from openfate.errors import DataFileError
from openfate.estimators.estimator import BankEstimator
from openfate.estimators.fate import FATEClassifier, FATERegressor
from openfate.estimators.wrapper import OpenWorldClassifier, OpenWorldRegressor

_KINDS = {
    kind.__name__: kind
    for kind in (FATEClassifier, FATERegressor, OpenWorldClassifier, OpenWorldRegressor)
}


def save(estimator: BankEstimator, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a fitted estimator as a bundle, a folder of plain files.

    Parameters
    ----------
    path
        The folder; one that is there needs `overwrite`.

    Examples
    --------
    >>> import polars as pl, tempfile
    >>> rows = pl.DataFrame({"job": ["cook", "nurse"] * 30})
    >>> clf = FATEClassifier(epochs=5).fit(rows, rows["job"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(clf, Path(folder) / "model")
    ...     files = (Path(folder) / "model").glob("[a-z]*")
    ...     sorted(file.name.split("-")[0] for file in files)
    ['meta.json', 'schema', 'state', 'vocabulary', 'weights']
    """
    estimator.save(path, overwrite=overwrite)


def load(path: str | Path, *, trusted: bool = False) -> Any:
    """Read the estimator that `save` or `openfate fit` wrote; no code of the bundle is run.

    Parameters
    ----------
    trusted
        Read a wrapped model that cannot be checked, too.  It may run code: only for bundles of
        people whom you would let work with your account.  See docs/security.md.

    Examples
    --------
    >>> import polars as pl, tempfile
    >>> rows = pl.DataFrame({"job": ["cook", "nurse"] * 30})
    >>> clf = FATEClassifier(epochs=5).fit(rows, rows["job"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(clf, Path(folder) / "model")
    ...     again = load(Path(folder) / "model")
    >>> bool((again.predict_proba(rows) == clf.predict_proba(rows)).all())
    True
    """
    return from_bank(FeatureBank.load(path, trusted=trusted), str(path))


def from_bank(bank: FeatureBank, source: str = "bundle") -> Any:
    """The estimator of a bank that was read from a bundle.

    Parameters
    ----------
    source
        What errors name.
    """
    kind = _KINDS.get(bank.meta.get("kind", ""))
    if kind is None:
        raise DataFileError(
            f"{source}: a bundle of kind {bank.meta.get('kind')!r} holds no estimator; read it "
            "with FeatureBank.load, or upgrade OpenFATE."
        )
    try:
        return kind._from_bank(bank)
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise DataFileError(
            f"{source}: meta.json does not describe a model ({error!r}); restore a copy of the "
            "bundle."
        ) from None
