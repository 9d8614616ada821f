"""Two nodes, each in a network of its own: one is cut off while it works, and comes back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from cli.tables import digest, people, run

from openfate.bank import FeatureBank

ROOT, RAY = Path(__file__).parents[2], Path(sys.executable).with_name("ray")
HERE, THERE, PORT, CLIENT = "10.77.0.1", "10.77.0.2", 6391, 10001
# A node that does not answer for some seconds is given up.
QUICK = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
}


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def inside(space, *command, **options):
    return subprocess.Popen(
        ["ip", "netns", "exec", space, *map(str, command)],
        env={**os.environ, **QUICK}, start_new_session=True, text=True, **options,
    )  # fmt: skip


def stop(process):
    for one in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, one)
            process.wait(10)


@pytest.fixture
def spaces():
    """Two network namespaces with a cable between them; its end in the second one."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'openfate[cluster]'")
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    names = [f"of{os.getpid()}{letter}" for letter in "ab"]
    cables = [f"v{os.getpid()}{letter}" for letter in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
    for name, cable, address in zip(names, cables, (HERE, THERE), strict=True):
        ip("link", "set", cable, "netns", name)
        ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
        ip("-n", name, "link", "set", cable, "up")
        ip("-n", name, "link", "set", "lo", "up")
    yield names, cables[1]
    for name in names:
        ip("netns", "del", name)


def start_other(space, folder):
    node = ["start", "--block", f"--address={HERE}:{PORT}", f"--node-ip-address={THERE}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return inside(space, RAY, *node, "--num-cpus=1", f"--temp-dir={folder}", **quiet)


def known(bank):
    """Rows and sums of each feature, by what it is: ids follow the cut into batches."""
    n_features, D = bank.encoder.n_features, bank.n_observed
    count, total = bank.evidence.state.at(np.arange(n_features - D))
    return {
        bank.encoder.describe(j): [bank.rows[j], *([] if j < D else [count[j - D], *total[j - D]])]
        for j in range(n_features)
    }


class Nodes:
    """Two nodes of a core each; the second may be cut off."""

    def __init__(self, spaces, folder):
        (self.here, self.there), self.cable = spaces
        self.folder = folder
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.head = inside(
            self.here, RAY, "start", "--head", "--block", f"--port={PORT}",
            f"--node-ip-address={HERE}", f"--ray-client-server-port={CLIENT}", "--num-cpus=1",
            "--include-dashboard=false", f"--temp-dir={folder / 'a'}", **quiet,
        )  # fmt: skip
        time.sleep(15)
        self.other = start_other(self.there, folder / "b")
        time.sleep(15)

    def openfate(self, *words):
        """A command that is running."""
        return inside(
            self.here, sys.executable, "-c", "from openfate.cli import main; main()", *words,
            "--cluster", f"ray://{HERE}:{CLIENT}", "--workers", "2",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def cut_off(self):
        """No packet comes through for 20 seconds."""
        ip("-n", self.there, "link", "set", self.cable, "down")
        time.sleep(20)
        ip("-n", self.there, "link", "set", self.cable, "up")
        stop(self.other)  # Ray ends a node that it has given up; a supervisor starts it again
        self.other = start_other(self.there, self.folder / "b")

    def close(self):
        stop(self.other)
        stop(self.head)


@pytest.fixture
def nodes(spaces):
    short = Path(tempfile.mkdtemp(prefix="r"))  # WHY: paths of sockets have 107 bytes
    found = Nodes(spaces, short)
    yield found
    found.close()
    shutil.rmtree(short, ignore_errors=True)


def finish(command):
    try:
        said, _ = command.communicate(timeout=200)
    finally:
        stop(command)
    assert command.returncode == 0, said


@pytest.mark.slow
def test_a_node_that_is_cut_off_while_it_observes_changes_nothing(nodes, tmp_path):
    people(300, 0).write_csv(tmp_path / "train.csv")
    people(4000, 1, later=True).write_csv(tmp_path / "later.csv")
    run("fit", tmp_path / "train.csv", "--target", "rich", "--exclude", "id", "--strategy",
        "evidence", "--epochs", 5, "--out", tmp_path / "alone")  # fmt: skip
    shutil.copytree(tmp_path / "alone", tmp_path / "spread")
    run("observe", tmp_path / "alone", tmp_path / "later.csv")
    command = nodes.openfate(
        "observe", tmp_path / "spread", tmp_path / "later.csv", "--batch-rows", "1"
    )
    time.sleep(45)
    assert command.poll() is None, command.communicate()
    nodes.cut_off()
    finish(command)
    one, other = (known(FeatureBank.load(tmp_path / name)) for name in ("alone", "spread"))
    assert one.keys() == other.keys()
    for name, numbers in one.items():
        np.testing.assert_allclose(other[name], numbers, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_a_node_that_is_cut_off_while_it_trains_changes_nothing(nodes, tmp_path):
    """Each node has a core, so that gradients go from one to the other."""
    people(2000, 0).write_csv(tmp_path / "train.csv")
    words = ["fit", tmp_path / "train.csv", "--target", "rich", "--exclude", "id", "--strategy"]
    words += ["none", "--epochs", "100", "--patience", "100", "--batch-size", "64"]
    finish(nodes.openfate(*words, "--out", tmp_path / "whole"))
    command, work = nodes.openfate(*words, "--out", tmp_path / "cut"), tmp_path / "cut.work"
    deadline = time.monotonic() + 60
    while not any(work.rglob("*.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.2)  # until there is a checkpoint
    assert command.poll() is None, command.communicate()
    nodes.cut_off()
    finish(command)
    assert digest(tmp_path / "cut") == digest(tmp_path / "whole")
