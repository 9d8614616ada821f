"""A run that was killed and resumed ends, bit by bit, where an uninterrupted one ends."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import algorithm
import pytest
import torch
from algorithm import FIELDS, make_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from streams import BASE, H, later, make, rows

from openfate.errors import InputError
from openfate.models import FATE, GCN, MLP, DeepFM
from openfate.training import Settings, Step, array_batches, loop, train
from openfate.training.checkpoint import Checkpoint, from_text, to_text

SETTINGS = replace(BASE, validate_every=2, checkpoint_every=3)


class Killed(Exception):  # noqa: N818
    pass


def source(epoch: int):
    return array_batches(*rows(0), 6, seed=1)(epoch)  # 4 mini-batches an epoch, 12 in all


def run(s, kill_at: int | None = None, resume: Checkpoint | None = None, seed: int = 5):
    """The model, the history and the last checkpoint before the end."""
    model, saved = make(lambda: DeepFM(H, hidden=(8,))).float(), {}

    def on_step(step: Step) -> None:
        if step.number == kill_at:
            raise Killed

    def on_checkpoint(checkpoint: Checkpoint) -> None:
        saved.clear()
        saved.update({name: value.clone() for name, value in checkpoint.items()})

    options = {"on_step": on_step, "on_checkpoint": on_checkpoint, "resume": resume, "seed": seed}
    history = None
    try:
        history = train(model, source, settings=s, validation=lambda: [later()], **options)
    except Killed:
        assert kill_at is not None
    return model, history, saved


@functools.cache
def uninterrupted(adam: str = "exact"):
    return run(replace(SETTINGS, adam=adam))[:2]


def assert_same_weights(one: torch.nn.Module, other: torch.nn.Module) -> None:
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


@pytest.mark.parametrize("adam", ["exact", "lazy", "dense"])
@pytest.mark.parametrize("n_ahead", [0, 2])
@pytest.mark.parametrize("kill_at", [4, 5, 9, 12])
def test_killed_and_resumed_equals_uninterrupted(kill_at, n_ahead, adam):
    s = replace(SETTINGS, n_ahead=n_ahead, adam=adam)
    whole, history = uninterrupted(adam)
    _, _, checkpoint = run(s, kill_at)
    resumed, resumed_history, _ = run(s, resume=checkpoint)
    assert_same_weights(resumed, whole)
    assert resumed_history.validations == history.validations or (
        str(resumed_history.validations) == str(history.validations)  # nan is not equal to nan
    )
    assert (resumed_history.best, len(resumed_history.steps)) == (history.best, len(history.steps))


@settings(max_examples=5)
@given(first=st.integers(4, 11), second=st.integers(4, 11))
def test_a_run_may_be_killed_more_than_once(first, second):
    whole = uninterrupted()[0]
    checkpoint = run(SETTINGS, first)[2]
    later_checkpoint = run(SETTINGS, max(first, second), resume=checkpoint)[2] or checkpoint
    assert_same_weights(run(SETTINGS, resume=later_checkpoint)[0], whole)


def test_more_epochs_go_on_where_fewer_ended():
    whole = uninterrupted()[0]
    checkpoint = run(replace(SETTINGS, epochs=1))[2]
    assert_same_weights(run(SETTINGS, resume=checkpoint)[0], whole)


def test_a_checkpoint_holds_plain_tensors_that_safetensors_can_write(tmp_path):
    checkpoint = run(SETTINGS, 9)[2]
    save_file(checkpoint, tmp_path / "run.safetensors")
    resumed = run(SETTINGS, resume=load_file(tmp_path / "run.safetensors"))[0]
    assert_same_weights(resumed, uninterrupted()[0])


def test_handing_out_checkpoints_changes_nothing():
    model = make(lambda: DeepFM(H, hidden=(8,))).float()
    train(model, source, settings=SETTINGS, validation=lambda: [later()], seed=5)
    assert_same_weights(model, uninterrupted()[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"lr": 0.5},
            "the checkpoint was made with lr=0.02, this run has 0.5: "
            "go on with the same, or start anew without resume.",
        ),
        (
            {"masking": "none"},
            "the checkpoint was made with masking='k_shot', this run has 'none': "
            "go on with the same, or start anew without resume.",
        ),
    ],
)
def test_another_run_cannot_be_resumed(changes, message):
    checkpoint = run(SETTINGS, 9)[2]
    with pytest.raises(InputError) as error:
        run(replace(SETTINGS, **changes), resume=checkpoint)
    assert str(error.value) == message


def test_another_seed_cannot_be_resumed():
    checkpoint = run(SETTINGS, 9)[2]
    with pytest.raises(InputError, match="made with seed=5, this run has 6"):
        run(SETTINGS, resume=checkpoint, seed=6)


def test_another_model_cannot_be_resumed():
    checkpoint = run(SETTINGS, 9)[2]
    model = make(lambda: DeepFM(H, hidden=(5,))).float()
    with pytest.raises(
        InputError, match=r"resume: a checkpoint of another model \(.*size mismatch"
    ):
        train(model, source, settings=SETTINGS, resume=checkpoint, seed=5)


# ---- tables ----------------------------------------------------------------------------------

TABLE, CLASSES = make_rows()
OF_TABLES = {
    "whole graph": algorithm.BASE,
    "mini-batches": replace(algorithm.BASE, batch_size=5),
    "leave out": replace(algorithm.BASE, masking="leave_out"),
    "plain": Settings.plain(epochs=6, batch_size=5),
    "sgd": replace(algorithm.BASE, optimizer="sgd", lr=0.5),
}


@pytest.mark.parametrize("kill_at", [2, 5])
@pytest.mark.parametrize("name", OF_TABLES)
def test_a_table_is_resumed_exactly(name, kill_at):
    s, ends = replace(OF_TABLES[name], checkpoint_every=1), []
    for stop in (None, kill_at):
        kept: Checkpoint = {}

        def keep(checkpoint: Checkpoint, kept: Checkpoint = kept) -> None:
            kept.update({name: value.clone() for name, value in checkpoint.items()})

        def kill(step: Step, stop: int | None = stop) -> None:
            if step.number == stop:
                raise Killed

        def fresh() -> FATE:
            torch.manual_seed(0)
            g = None if name == "plain" else GCN(4)
            return FATE(8, MLP(4, 3, dropout=0.3), g)

        options = {"validation": make_rows(9), "field_of": FIELDS, "seed": 4}
        model = fresh()
        try:
            history = train(model, TABLE, CLASSES, s, on_step=kill, on_checkpoint=keep, **options)
        except Killed:
            model = fresh()
            history = train(model, TABLE, CLASSES, s, resume=kept, **options)
            assert len(kept["steps"]) == kill_at - 1
        ends.append((model, history))
    assert_same_weights(ends[0][0], ends[1][0])
    assert ends[0][1].best == ends[1][1].best
    assert [step.train_loss for step in ends[0][1].steps] == [
        step.train_loss for step in ends[1][1].steps
    ]


@pytest.mark.parametrize("name", ["mini-batches", "plain"])
def test_a_table_is_resumed_exactly_within_a_step(name, monkeypatch):
    """An epoch of a year of logs takes hours: a kill must not cost all of it."""
    monkeypatch.setattr(loop, "_SECONDS", -1.0)
    s, kept = replace(OF_TABLES[name], epochs=3), []

    def keep(checkpoint: Checkpoint) -> None:
        kept.append({name: value.clone() for name, value in checkpoint.items()})

    def run_table(**options: Any) -> FATE:
        torch.manual_seed(0)
        model = FATE(8, MLP(4, 3, dropout=0.3), None if name == "plain" else GCN(4))
        train(model, TABLE, CLASSES, s, validation=make_rows(9), field_of=FIELDS, seed=4, **options)
        return model

    whole = run_table(on_checkpoint=keep)
    assert {len(checkpoint["losses"]) > 0 for checkpoint in kept} == {True}
    assert {len(checkpoint["steps"]) for checkpoint in kept} == {0, 1, 2}
    for checkpoint in kept:
        assert_same_weights(run_table(resume=checkpoint), whole)


def test_text_survives_in_a_tensor():
    about = {"seed": 1, "name": "Straße", "nothing": None}
    assert from_text(to_text(about)) == about


PROGRAM = """
import sys
sys.path[:0] = {paths!r}
from test_checkpoint import *

def write(checkpoint):
    save_file(checkpoint, "new.safetensors")
    Path("new.safetensors").rename("run.safetensors")

def kill(step):
    if step.number == 8:
        signal.raise_signal(signal.SIGKILL)

torch.set_num_threads(1)
model = make(lambda: DeepFM(H, hidden=(8,))).float()
options = dict(on_step=kill, on_checkpoint=write, seed=5)
train(model, source, settings=SETTINGS, validation=lambda: [later()], **options)
"""


def test_a_process_killed_for_real_can_be_resumed(tmp_path):
    paths = [str(Path(__file__).parents[level]) for level in range(3)]
    program = [sys.executable, "-c", PROGRAM.format(paths=paths)]
    killed = subprocess.run(program, check=False, cwd=tmp_path, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    checkpoint = load_file(tmp_path / "run.safetensors")
    assert len(checkpoint["steps"]) == 6  # the last one before mini-batch 8
    assert_same_weights(run(SETTINGS, resume=checkpoint)[0], uninterrupted()[0])
