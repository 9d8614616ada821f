"""A small bundle, and the places where a state can be kept."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import uuid

import numpy as np
import polars as pl
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from openfate import FATEClassifier, OpenWorldClassifier
from openfate.openworld import Pooling

POSTGRES = os.environ.get("OPENFATE_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")


def shop(n, seed=0, campaigns=("autumn", "winter")):
    """Visits of a shop, and whether something was bought: campaigns tell."""
    rng = np.random.default_rng(seed)
    bought = rng.integers(0, 2, n)

    def hint(values):
        half = len(values) // 2
        shown = np.where(rng.random(n) < 0.5, rng.integers(0, 2, n), bought)
        return [
            values[kind * half + at]
            for kind, at in zip(shown, rng.integers(0, half, n), strict=True)
        ]

    rows = pl.DataFrame(
        {
            "page": hint(["a", "b", "c", "d"]),
            "device": hint(["phone", "desk"]),
            "campaign": hint(list(campaigns)),
            "age": rng.normal(40 + 5 * bought, 8, n).round(1),
        }
    )
    return rows, bought


@pytest.fixture(scope="session")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("serving") / "bundle"
    rows, bought = shop(400)
    FATEClassifier(epochs=10).fit(rows, bought).save(path)
    return path


class Trained:
    """A bundle of boosting, and its training rows as a file and as `LiveBank` wants them."""

    def __init__(self, folder, seed=0):
        self.bundle, self.file = folder / "bundle", folder / "rows.csv"
        self.rows, self.bought = shop(400, seed)
        model = HistGradientBoostingClassifier(max_iter=3, max_leaf_nodes=4)
        model = OpenWorldClassifier(model, pooling=Pooling(0.5)).fit(self.rows, self.bought)
        model.save(self.bundle)
        self.rows.with_columns(bought=pl.Series(self.bought)).write_csv(self.file)

    def train(self, _):
        return self.rows, self.bought


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    return Trained(tmp_path_factory.mktemp("trained"))


def postgres_url():
    """A schema of its own in the database of the tests; skips where there is none."""
    psycopg = pytest.importorskip("psycopg")
    name = f"t{uuid.uuid4().hex}"
    try:
        with psycopg.connect(POSTGRES, autocommit=True, connect_timeout=3) as db:
            db.execute(f"CREATE SCHEMA {name}")
    except psycopg.Error as error:
        pytest.skip(f"no PostgreSQL at {POSTGRES} (set OPENFATE_POSTGRES): {error}")
    return f"{POSTGRES}?options=-csearch_path%3D{name}", name


@pytest.fixture(params=["sqlite", "postgresql"])
def state(request, tmp_path):
    """The URL of an empty state."""
    if request.param == "sqlite":
        yield str(tmp_path / "state")
        return
    url, name = postgres_url()
    yield url
    import psycopg

    with psycopg.connect(POSTGRES, autocommit=True) as db:
        db.execute("SET client_min_messages = warning")
        db.execute(f"DROP SCHEMA {name} CASCADE")


class Cluster:
    """A PostgreSQL server of its own, which can be restarted under those who use it."""

    def __init__(self):
        found = [
            shutil.which("initdb") or "",
            *sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb")),
        ]
        self.bin = next((os.path.dirname(os.path.realpath(name)) for name in found if name), None)
        self.user = None
        if self.bin is None:
            pytest.skip("no initdb: install postgresql")
        if os.geteuid() == 0:  # a server refuses to run as root
            self.user = next((u.pw_name for u in pwd.getpwall() if u.pw_name == "postgres"), None)
            if self.user is None:
                pytest.skip("the tests run as root, and there is no user postgres")
        self.folder = tempfile.mkdtemp(prefix="openfate-postgres-")
        if self.user is not None:
            shutil.chown(self.folder, self.user)
        with socket.socket() as place:
            place.bind(("127.0.0.1", 0))
            self.port = place.getsockname()[1]
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self.run(
            "initdb", "-D", f"{self.folder}/data", "-U", "postgres", "-A", "trust", "-E", "UTF8"
        )
        self.control("start")

    def run(self, program, *words):
        """One of PostgreSQL's programs."""
        subprocess.run(
            [f"{self.bin}/{program}", *words],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            user=self.user,
            cwd=self.folder,
        )

    def control(self, word, *more):
        """Start, stop or restart it."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.folder}"
        at = ("-D", f"{self.folder}/data", "-w", "-l", f"{self.folder}/log", "-o", options)
        self.run("pg_ctl", word, *at, *more)

    def close(self):
        self.control("stop", "-m", "immediate")
        shutil.rmtree(self.folder)


@pytest.fixture
def cluster():
    """A PostgreSQL server for one test; skips where none can be started."""
    made = Cluster()
    yield made
    made.close()
