"""A synthetic shop for `openfate serve --demo`: new campaigns appear while one watches.

Visits come a few a second.  Every so often a campaign starts that training never saw; some make
visitors buy, others do not.  Whether a visit led to a purchase is known a little later.
"""

from __future__ import annotations

import collections
import itertools
import json
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from openfate.estimators import FATEClassifier

_PAGES = ("home", "shoes", "coats", "sale", "cart")
_DEVICES = ("phone", "laptop", "tablet")
_COUNTRIES = ("it", "no", "pt", "de", "ie", "fr")
_KNOWN = ("newsletter", "search", "none")


class Shop:
    """Visits, and what became of them.

    Parameters
    ----------
    seed
        Of everything that is drawn.
    campaign_visits
        Visits between two new campaigns.

    Examples
    --------
    >>> shop = Shop(seed=1, campaign_visits=10)
    >>> campaigns = [shop.visit()[0]["campaign"] for _ in range(60)]
    >>> sorted({name for name in campaigns if name.startswith("campaign")})[0]
    'campaign 1'
    """

    def __init__(self, seed: int = 0, campaign_visits: int = 150) -> None:
        self._rng = np.random.default_rng(seed)
        self._effects = {
            **dict.fromkeys(_PAGES, 0.0),
            "cart": 1.4,
            "sale": 0.5,
            "phone": -0.4,
            "newsletter": 0.7,
        }
        self.campaigns: list[str] = []
        self._campaign_visits = campaign_visits
        self._visits = 0

    def visit(self, known: bool = False) -> tuple[dict[str, Any], int]:
        """One visit, and whether something was bought; known: of the time of training."""
        rng = self._rng
        if not known:
            self._visits += 1
            # WHY two at first: one alone could not be told from a change of all visits.
            n_more = 2 if self._visits == 1 else int(self._visits % self._campaign_visits == 1)
            for _ in range(n_more):
                name = f"campaign {len(self.campaigns) + 1}"
                self.campaigns.append(name)
                self._effects[name] = 2.2 if len(self.campaigns) % 2 else -1.8
        row: dict[str, Any] = {
            "page": str(rng.choice(_PAGES)),
            "device": str(rng.choice(_DEVICES)),
            "country": str(rng.choice(_COUNTRIES)),
            "campaign": str(rng.choice(_KNOWN)),
            "minutes": float(np.round(rng.gamma(2.0, 3.0), 1)),
        }
        if self.campaigns and not known and rng.random() < 0.7:
            row["campaign"] = str(rng.choice(self.campaigns[-6:]))
        if len(self.campaigns) >= 3 and not known:  # a column that training never had
            row["coupon"] = str(rng.choice(["none", "ten percent"]))
        effect = sum(self._effects.get(str(cell), 0.0) for cell in row.values())
        effect += 1.5 * (row.get("coupon") == "ten percent")
        odds = -1.6 + effect + 0.08 * (row["minutes"] - 6)
        return row, int(rng.random() < 1 / (1 + np.exp(-odds)))

    def fit(self, path: Path, n_visits: int = 1500) -> None:
        """Train on visits of the time before the campaigns, and write a bundle."""
        visits = [self.visit(known=True) for _ in range(n_visits)]
        rows = pl.DataFrame([row for row, _ in visits])
        FATEClassifier(epochs=20).fit(rows, np.array([y for _, y in visits])).save(path)


class Visitors(threading.Thread):
    """Sends visits to a service, and their outcomes later, until it is told to stop.

    Parameters
    ----------
    url
        Of the service, without a slash at its end.
    rate
        Visits a second.
    delay_s
        Until an outcome is known.
    """

    def __init__(self, shop: Shop, url: str, rate: float = 15.0, delay_s: float = 10.0) -> None:
        super().__init__(name="visitors", daemon=True)
        self.shop, self.url, self.rate, self.delay_s = shop, url, rate, delay_s
        self.stopping = threading.Event()

    def run(self) -> None:
        """Visit."""
        outcomes: collections.deque[tuple[float, str, int]] = collections.deque()
        for number in itertools.count():
            if self.stopping.wait(1 / self.rate):
                return
            row, bought = self.shop.visit()
            name = f"visit-{time.time_ns()}-{number}"
            if self._send("/predict", {"row": row, "id": name}):
                outcomes.append((time.monotonic() + self.delay_s, name, bought))
            due = []
            while outcomes and outcomes[0][0] <= time.monotonic():
                due.append(outcomes.popleft())
            if due:
                ids = [name for _, name, _ in due]
                self._send("/labels", {"ids": ids, "labels": [y for *_, y in due]})

    def _send(self, path: str, told: dict[str, Any]) -> bool:
        request = urllib.request.Request(
            self.url + path, json.dumps(told).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
