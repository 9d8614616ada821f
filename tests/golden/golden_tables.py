"""Generated tables: what is known in training, and what comes later."""

from __future__ import annotations

import datetime
import random

import polars as pl


def people(n_rows: int, seed: int, *, later: bool = False) -> pl.DataFrame:
    """All columns tell a little of `rich` and `wage`; later there are new jobs, a city, a score."""
    rng = random.Random(seed)
    jobs = [["cook", "nurse", "clerk"], ["pilot", "judge", "actor"]]
    if later:
        jobs = [[*jobs[0], "clown"], [*jobs[1], "spy"]]
    rows = []
    for number in range(n_rows):
        rich = rng.random() < 0.5

        def told(share: float, rich: bool = rich) -> bool:
            return rich if rng.random() < share else not rich

        age = rng.randint(18, 60) + 15 * told(0.75)
        day = datetime.date(2024, 1 + 6 * later, 1) + datetime.timedelta(rng.randint(0, 90))
        row = {
            "job": rng.choice(jobs[told(0.8)]),
            "age": None if number % 17 == 3 else age,
            "zip": rng.choice(["01", "02"] if told(0.7) else ["10", "11"]),
            "joined": day,
            "height": round(rng.gauss(170 + 5 * told(0.7), 9), 1),
            "rich": "yes" if rich else "no",
            "wage": round(10 + 8 * rich + age / 20 + rng.random(), 3),
        }
        if later:
            row["city"] = rng.choice(["Rome", "Oslo"] if told(0.85) else ["Bern", "Kiev"])
            row["score"] = round(rng.random() + rich, 3)
        rows.append(row)
    return pl.DataFrame(rows)


TARGETS = ("rich", "wage")


def known(frame: pl.DataFrame) -> pl.DataFrame:
    """The columns that a model may use."""
    return frame.drop(*TARGETS)


def figures(frame: pl.DataFrame) -> pl.DataFrame:
    """Columns for models that take numbers alone (and what is new, of any kind)."""
    return frame.drop(*TARGETS, "job", "zip", "joined").with_columns(
        pl.col("age").fill_null(40),
        senior=frame["job"].is_in(["pilot", "judge", "actor"]).cast(pl.Int64),
    )


def opinions(n_rows: int, seed: int, *, later: bool = False) -> pl.DataFrame:
    """Sixteen answers that each tell one of three groups a little, so that evidence pays.

    The last eight columns come later.
    """
    rng = random.Random(seed)
    rows = []
    for _ in range(n_rows):
        group = rng.randrange(3)
        answers = [
            (group + question) % 3 if rng.random() < 0.5 else rng.randrange(3)
            for question in range(16 if later else 8)
        ]
        rows.append({**{f"q{n}": str(a) for n, a in enumerate(answers)}, "group": group})
    return pl.DataFrame(rows)


def answers(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.drop("group")


def group(frame: pl.DataFrame) -> pl.Series:
    return frame["group"]
