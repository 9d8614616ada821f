"""The peer of `openfate bench serve`: FastAPI around LightGBM, written as its users would."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightgbm
import pandas as pd
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

_FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
app = FastAPI()


class Row(BaseModel):
    """The columns of training."""

    x0: float
    x1: float
    x2: float
    x3: float
    x4: float
    t0: str
    t1: str
    t2: str
    t3: str
    t4: str


class Model:
    """A booster and the categories of its columns of text."""

    def __init__(self, folder: Path) -> None:
        self.booster = lightgbm.Booster(model_file=str(folder / "model.txt"))
        told = json.loads((folder / "model.json").read_text())
        self.columns, self.categories = told["columns"], told["categories"]

    def predict_proba(self, rows: list[dict[str, Any]]) -> list[list[float]]:
        """(N, 2)."""
        frame = pd.DataFrame(rows, columns=self.columns)
        for name, categories in self.categories.items():
            frame[name] = pd.Categorical(frame[name], categories=categories)
        p = self.booster.predict(frame, num_threads=1)
        return [[1 - float(q), float(q)] for q in p]


@app.post("/predict")
def predict(row: Row) -> dict[str, list[float]]:
    """One row."""
    return {"probabilities": app.state.model.predict_proba([row.model_dump()])[0]}


@app.post("/predict-many")
def predict_many(rows: list[Row]) -> dict[str, list[list[float]]]:
    """Many."""
    return {"probabilities": app.state.model.predict_proba([row.model_dump() for row in rows])}


if __name__ == "__main__":
    app.state.model = Model(_FOLDER)
    uvicorn.run(app, port=int(sys.argv[3]), log_level="warning", access_log=False)
