"""Mini-batches: shuffled arrays and graphs of touched features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openfate.errors import InputError
from openfate.training import Batch, array_batches
from openfate.training.batches import IdBatch, _check_width, prepare_ahead

IDS = np.array([[0, 5], [1, 5], [0, 7], [2, 6], [1, 6]], np.int32)
Y = np.array([0, 1, 1, 0, 1])


@given(batch_size=st.integers(1, 7), seed=st.integers(0, 99), epoch=st.integers(1, 3))
def test_an_epoch_holds_every_row_once(batch_size, seed, epoch):
    batches = list(array_batches(IDS, Y, batch_size, seed)(epoch))
    rows = [(*ids, label) for table, y in batches for ids, label in zip(table, y, strict=True)]
    assert sorted(rows) == sorted((*ids, label) for ids, label in zip(IDS, Y, strict=True))
    assert [len(y) for _, y in batches[:-1]] == [batch_size] * (len(batches) - 1)


def test_epochs_differ_and_repeat():
    epochs = array_batches(np.arange(40)[:, None], np.arange(40) % 2, 40, seed=1)
    one, again, other = (next(iter(epochs(number)))[0][:, 0].tolist() for number in (1, 1, 2))
    assert one == again and one != other


def test_without_a_seed_the_order_is_kept():
    tables = [ids for ids, _ in array_batches(IDS, Y, 2)(1)]
    assert np.array_equal(np.concatenate(tables), IDS)


def test_a_batch_holds_only_what_it_touches(device):
    batch = Batch.of(IDS[:2], Y[:2], device)
    assert batch.ids.tolist() == [0, 1, 5] and batch.X.n_features == 3 and len(batch.y) == 2
    assert batch.y.dtype == torch.float32 and batch.X.field_of.tolist() == [0, 0, 1]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_tensors_make_the_same_batch_as_arrays(device, dtype):
    one = Batch.of(IDS, Y, device)
    tables = torch.from_numpy(IDS).to(device, dtype), torch.from_numpy(Y).to(device)
    for other in (Batch.of(*tables, device), Batch.of(tables[0], Y, device)):
        assert torch.equal(one.ids, other.ids) and torch.equal(one.y, other.y)
        assert torch.equal(one.X.feature, other.X.feature)


def test_rows_wait_until_they_are_there(device):
    rows = IdBatch.of(IDS, Y, device)
    rows.wait()
    assert rows.ids.dtype == torch.int32 and rows.ids.tolist() == IDS.tolist()
    assert rows.y.tolist() == rows.labels.tolist() == Y.tolist()


@pytest.mark.parametrize("shift", [2**32, -(2**32)])
def test_wide_ids_of_tensors_are_named(device, shift):
    ids = torch.from_numpy(IDS).to(device, torch.int64)
    at = -1 if shift > 0 else 0
    with pytest.raises(InputError, match=f"feature id {ids.unique()[at] + shift}: ids "):
        Batch.of(ids + shift, torch.from_numpy(Y).to(device), device)
    with pytest.raises(InputError, match=f"feature id {ids.unique()[at] + shift}: ids "):
        _check_width(ids + shift)  # as one that is on a device


def test_bad_labels_of_tensors_are_named(device):
    with pytest.raises(InputError, match=r"a label is 2: clicks are 0 or 1\."):
        Batch.of(torch.from_numpy(IDS).to(device), torch.from_numpy(Y * 2).to(device), device)
    with pytest.raises(InputError, match=r"the type torch.float32: give integers"):
        Batch.of(torch.zeros(2, 2, device=device), torch.zeros(2), device)


def test_empty_batches_are_passed_over():
    batches = [(IDS[:n], Y[:n]) for n in (0, 2, 0, 1)]
    assert [len(batch.y) for batch in prepare_ahead(batches, Batch.of, n_ahead=0)] == [2, 1]


@pytest.mark.parametrize(
    ("ids", "y", "message"),
    [
        (
            IDS[:, 0],
            Y,
            "a batch's ids have the shape (5,) and the type int32: give integers (rows, fields).",
        ),
        (IDS, Y[:3], "a batch of 5 rows has labels of the shape (3,); give one for each row."),
        (
            IDS.astype(np.int64) + 2**32,
            Y,
            f"feature id {int(IDS.max()) + 2**32}: ids go up to 2^31 - 1; number from 0 on.",
        ),
        (IDS, Y * 2, "a label is 2: clicks are 0 or 1."),
        (IDS - 1, Y, "feature id -1: ids are integers from 0."),
        (
            IDS.astype(np.int64) - 2**32,
            Y,
            f"feature id {int(IDS.min()) - 2**32}: ids are integers from 0.",
        ),
        (
            IDS.astype(np.uint32) + np.uint32(2**31),
            Y,
            f"feature id {int(IDS.max()) + 2**31}: ids go up to 2^31 - 1; number from 0 on.",
        ),
        (IDS.tolist(), Y, "a batch's ids are a list: give an array or a tensor."),
        (IDS, list(Y), "a batch's labels are a list: give an array or a tensor."),
        (
            IDS[:, :0],
            Y,
            "a batch's ids have the shape (5, 0) and the type int32: give integers (rows, fields).",
        ),
        (
            IDS,
            Y.astype(complex),
            "a batch's labels have the type complex128: give numbers 0 and 1.",
        ),
        (IDS, Y.astype(object), "a batch's labels have the type object: give numbers 0 and 1."),
        (IDS, Y * np.nan, "a label is nan: clicks are 0 or 1."),
    ],
)
def test_bad_batches_are_named(ids, y, message):
    with pytest.raises(InputError) as error:
        Batch.of(ids, y)
    assert str(error.value) == message


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.uint64, np.uint32])
def test_ids_of_any_whole_type_are_the_same_batch(dtype):
    one, other = Batch.of(IDS, Y), Batch.of(IDS.astype(dtype), Y.astype(bool))
    assert torch.equal(one.ids, other.ids) and torch.equal(one.y, other.y)
    assert Batch.of(IDS.astype(dtype)[:, ::-1], Y).X.n_rows == one.X.n_rows  # strides of any kind


def test_a_batch_size_below_one_is_refused():
    with pytest.raises(InputError) as error:
        array_batches(IDS, Y, 0)
    assert str(error.value) == "batch_size=0: choose 1 or more."
