"""Clusters that run already, other versions, drivers that die: real nodes and commands."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from cli.tables import digest, process

from openfate.cluster import connect
from openfate.errors import InputError

ROOT = Path(__file__).parents[2]


def free_port():
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


def start_node(*words, **environment):
    """A node of a Ray cluster; it ends when its process group is killed."""
    command = [Path(sys.executable).with_name("ray"), "start", "--block", "--num-cpus=2", *words]
    own = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", **environment}
    return subprocess.Popen(
        command, env=own, start_new_session=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip


def stop(node):
    for one in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(node.pid, one)
            node.wait(10)


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """A cluster of one node that runs by itself: its ports."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'openfate[cluster]'")
    port, client = free_port(), free_port()
    before = os.environ.get("RAY_AUTH_MODE")
    os.environ["RAY_AUTH_MODE"] = "disabled"  # of the node, and of commands that are started
    folder = tmp_path_factory.mktemp("ray")
    node = start_node(
        "--head", f"--port={port}", f"--ray-client-server-port={client}",
        "--include-dashboard=false", f"--temp-dir={folder}",
    )  # fmt: skip
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and node.poll() is None:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", client)) == 0:
                break
        time.sleep(0.5)
    yield port, client
    stop(node)
    os.environ.pop("RAY_AUTH_MODE")
    if before is not None:
        os.environ["RAY_AUTH_MODE"] = before


def finish(command):
    out, errors = command.communicate(timeout=200)
    return command.returncode, out + errors


@pytest.mark.slow
def test_a_cluster_that_is_there_fits_predicts_and_observes(head, tables, tmp_path, openfate):
    on = ["--cluster", f"ray://127.0.0.1:{head[1]}", "--workers", "2"]
    later, cut = tables / "later.csv", ["--batch-rows", "40"]
    words = ["fit", tables / "train.csv", "--target", "rich", "--exclude", "id", "--strategy"]
    words += ["none", "--epochs", "2", "--out", tmp_path / "fitted"]
    shutil.copytree(tables / "model", tmp_path / "model")
    for one in (
        [*words, *on],
        ["predict", tables / "model", later, *cut, *on, "--out", tmp_path / "spread.csv"],
        ["observe", tmp_path / "model", later, *cut, *on, "--labelled"],
    ):
        code, said = finish(process(*one))
        assert code == 0, said
    openfate("predict", tables / "model", later, *cut, "--out", tmp_path / "alone.csv")
    found, expected = (pl.read_csv(tmp_path / f"{n}.csv")["p_true"] for n in ("spread", "alone"))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    openfate("predict", tmp_path / "fitted", later, "--out", tmp_path / "fitted.csv")


@pytest.mark.slow
def test_a_driver_that_is_killed_leaves_the_bundle_as_it_was(head, tables, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(tables / "model", model)
    before = digest(model)
    on = ["--cluster", f"ray://127.0.0.1:{head[1]}", "--workers", "2"]
    command = process("observe", model, tables / "later.csv", "--batch-rows", "1", *on)
    time.sleep(15)
    command.kill()
    command.communicate()
    assert digest(model) == before


@pytest.mark.slow
def test_a_node_of_other_versions_is_named(head, tables, tmp_path):
    other = tmp_path / "polars-0.0.1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: polars\nVersion: 0.0.1\n")
    node = start_node(f"--address=127.0.0.1:{head[0]}", PYTHONPATH=f"{tmp_path}:{ROOT}")
    try:
        time.sleep(10)
        words = ["predict", tables / "model", tables / "later.csv", "--out", tmp_path / "p.csv"]
        words += ["--cluster", f"ray://127.0.0.1:{head[1]}"]
        code, said = finish(process(*words))
        assert code == 2
        assert f"node {socket.gethostname()} (" in said
        assert "has polars 0.0.1, this process" in said
        assert not (tmp_path / "p.csv").exists()
    finally:
        stop(node)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'openfate\[cluster\]'"), connect("local"):
        pass
