"""DeepFM of FuxiCTR, from the raw files to the scored day: the peer of `openfate bench clicks`.

Preparation, loader, layers and loop are FuxiCTR's own.  The model is put together as in its model
zoo, which its wheel leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from fuxictr.datasets.criteo import CustomizedFeatureProcessor
from fuxictr.features import FeatureMap
from fuxictr.preprocess import build_dataset, feature_processor
from fuxictr.pytorch.dataloaders import RankDataLoader
from fuxictr.pytorch.layers import FactorizationMachine, FeatureEmbedding, MLP_Block
from fuxictr.pytorch.models import BaseModel
from numpy.typing import NDArray


class DeepFM(BaseModel):  # type: ignore[misc]
    """A factorization machine, a linear model and a feed-forward network, added up."""

    def __init__(
        self, feature_map: Any, folder: Path, width: int, hidden: Sequence[int], lr: float
    ) -> None:
        options = {"verbose": 0, "model_root": str(folder), "metrics": ["AUC", "logloss"]}
        super().__init__(feature_map, model_id="DeepFM", **options)
        self.embedding_layer = FeatureEmbedding(feature_map, width)
        self.fm = FactorizationMachine(feature_map)
        self.mlp = MLP_Block(
            input_dim=feature_map.sum_emb_out_dim(),
            output_dim=1,
            hidden_units=list(hidden),
            hidden_activations="ReLU",
            output_activation=None,
        )
        self.compile("adam", "binary_crossentropy", lr)
        self.reset_parameters()
        self.model_to_device()

    def forward(self, inputs: Any) -> dict[str, Any]:
        """Chances of rows."""
        X = self.get_inputs(inputs)
        embedded = self.embedding_layer(X)
        y = self.fm(X, embedded) + self.mlp(embedded.flatten(start_dim=1))
        return {"y_pred": self.output_activation(y)}

    def eval_step(self) -> None:
        """Nothing: one epoch has nothing to stop early."""

    def load_weights(self, checkpoint: str) -> None:
        """Nothing: the last weights are there."""


class Processor(CustomizedFeatureProcessor):  # type: ignore[misc]
    """FuxiCTR's, of Criteo's logs."""

    def read_data(self, data_path: str, **_: Any) -> Any:
        """The lines of a file, lazily."""
        # WHY: its own gives polars an argument, `dtypes`, that was renamed and is gone from 2.0 on.
        return feature_processor.pl.scan_csv(data_path, schema_overrides=self.dtype_dict)


def train_deepfm(
    folder: Path,
    numbers: Sequence[str],
    hashes: Sequence[str],
    *,
    width: int,
    hidden: Sequence[int],
    batch_size: int,
    lr: float,
    rare: int,
) -> Callable[[], tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """Prepare train.csv and day.csv, train one epoch; what it returns scores the day.

    Parameters
    ----------
    numbers, hashes
        Names of the columns; numbers are put into buckets as FuxiCTR's recipe for Criteo does.
    rare
        A value of fewer rows is none of its own.
    """
    bucketed = {"dtype": "float", "preprocess": "convert_to_bucket"}
    columns = [
        {"name": list(names), "active": True, "type": "categorical", **options}
        for names, options in ((numbers, bucketed), (hashes, {"dtype": "str"}))
    ]
    label = {"name": "label", "dtype": "float"}
    encoder = Processor(columns, label, dataset_id="log", data_root=str(folder))
    files = {"train_data": str(folder / "train.csv"), "test_data": str(folder / "day.csv")}
    train, _, day = build_dataset(encoder, min_categr_count=rare, **files)
    feature_map = FeatureMap("log", encoder.data_dir)
    feature_map.load(encoder.json_file, {"embedding_dim": width})
    options = {"batch_size": batch_size, "data_format": "parquet", "num_workers": 1}
    rows, _ = RankDataLoader(feature_map, "train", train_data=train, shuffle=True, **options)
    model = DeepFM(feature_map, folder, width, hidden, lr)
    model.fit(rows, epochs=1)

    def score() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        later = RankDataLoader(feature_map, "test", test_data=day, shuffle=False, **options)
        y = pandas.read_parquet(day, columns=["label"])["label"].to_numpy()
        return model.predict(later), y.astype(np.int64)

    return score
