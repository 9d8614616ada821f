"""One case of a fuzzer, by its number: what is tried, and what came of it.

Good outcomes are "refused" (one line that names the fault), "same" and "other" (it predicts what
it did, or other finite numbers).  All others are `BAD`.
"""

from __future__ import annotations

import random
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from bundle_mutations import corrupt, craft, write
from row_files import write_rows
from seed_bundles import Files

from openfate import load
from openfate.bank import FeatureBank
from openfate.cli.predict import predict
from openfate.errors import OpenFATEError
from openfate.table import Encoder, RowFile, Schema

BAD = ("code run", "crash", "hang", "raw traceback", "nan prediction", "file made elsewhere")
Outcome = tuple[str, str]  # and what it was
_RUNS_CODE = {"pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen"}
_alarms: list[str] = []


def listen() -> None:
    """Have Python tell of code that is run; there is no way back."""

    def hear(event: str, args: tuple[Any, ...]) -> None:
        if event in _RUNS_CODE and not (
            event == "subprocess.Popen" and any("trial.py" in str(part) for part in args[1])
        ):
            _alarms.append(f"{event} {args!r}"[:300])

    # WHY: scikit-learn's boosting asks `lscpu` for the cores, once.
    joblib.cpu_count(only_physical_cores=True)
    sys.addaudithook(hear)


class Cases:
    """All cases, of some bundles.

    Parameters
    ----------
    seeds
        The files of whole bundles, and rows that each predicts.
    catboost_share
        Of the cases; each takes seconds, for it is tried in another process.
    """

    def __init__(self, seeds: dict[str, tuple[Files, Any]], catboost_share: float = 0.004) -> None:
        self.seeds, self.catboost_share = seeds, catboost_share
        self._expected: dict[str, np.ndarray] = {}

    def run(self, kind: str, number: int) -> Outcome:
        """Run one: "bundle with old hashes", "bundle with fresh hashes" or "rows"."""
        rng = random.Random(f"{kind} {number}")
        _alarms.clear()
        with tempfile.TemporaryDirectory(dir=_memory_disk()) as top, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            folder = Path(top) / "bundle"
            folder.mkdir()
            act = self._rows if kind == "rows" else self._bundle
            outcome = self._guard(lambda: act(kind, rng, folder))
            if (Path(top) / "created").exists():
                outcome = "file made elsewhere", str(folder)
        if _alarms:
            return "code run", _alarms[0]
        return outcome

    def _guard(self, act: Callable[[], Outcome]) -> Outcome:
        try:
            return act()
        except OpenFATEError as error:
            return _tell(str(error))
        except BaseException:  # polars' panics are no Exception
            return "raw traceback", traceback.format_exc()[-1500:]

    def _bundle(self, kind: str, rng: random.Random, folder: Path) -> Outcome:
        name = rng.choice([name for name in self.seeds if name != "catboost"])
        if "catboost" in self.seeds and rng.random() < self.catboost_share:
            name = "catboost"
        files, rows = self.seeds[name]
        expected = self._expect(name)
        (corrupt if kind == "bundle with old hashes" else craft)(files, rng, folder)
        model = load(folder)
        found = _predictions(model, rows)
        if all(np.isfinite(one).all() for one in found):
            model.observe(rows)
            model.schema_report(rows)
            found = [*found, *_predictions(model, rows)]
        if not all(np.isfinite(one).all() for one in found):
            return "nan prediction", name
        same = found[0].shape == expected.shape and np.allclose(found[0], expected, atol=1e-9)
        return "same" if same else "other", name

    def _expect(self, name: str) -> np.ndarray:
        if name not in self._expected:
            files, rows = self.seeds[name]
            with tempfile.TemporaryDirectory() as folder:
                write(files, Path(folder))
                self._expected[name] = _predictions(load(folder), rows)[0]
        return self._expected[name]

    def _rows(self, kind: str, rng: random.Random, folder: Path) -> Outcome:
        write(
            self.seeds[rng.choice([n for n in self.seeds if n in ("fate", "network")])][0], folder
        )
        path = write_rows(folder.parent, rng)
        if rng.random() < 0.3:  # as `fit` looks at a file
            file = RowFile(path)
            frame = file.read()
            Encoder(Schema.from_frame(frame)).fit(frame).encode(frame)
            list(file.survey(file.types))
            return "same", path.name
        out = folder.parent / rng.choice(["out.csv", "out.parquet"])
        predict(folder, path, out=out, graph=rng.choice(["auto", "state", "batch"]))
        if rng.random() < 0.3:
            bank = FeatureBank.load(folder)
            for frame in RowFile(path).batches():
                bank.observe(frame)
        written = RowFile(out).read()
        if any(s.is_null().any() or s.is_nan().any() for s in written if s.dtype.is_float()):
            return "nan prediction", path.name
        return "same", path.name


def _tell(text: str) -> Outcome:
    try:
        text.encode()
    except UnicodeEncodeError:  # no terminal could show it
        return "raw traceback", repr(text)
    return "refused", text[:300]


def _predictions(model: Any, rows: Any) -> list[np.ndarray]:
    act = getattr(model, "predict_proba", model.predict)
    return [np.asarray(act(rows, graph=graph), dtype=float) for graph in ("auto", "state")]


def _memory_disk() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
