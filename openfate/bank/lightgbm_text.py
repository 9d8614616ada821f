"""LightGBM's text of a model, checked and written anew before LightGBM reads it.

LightGBM believes what such a text says: a child or a feature that is not there is read from memory
that is not the model's.  Here every number that a prediction follows is checked, and what LightGBM
gets is made of those numbers alone: no parameters, no sizes to jump by, nothing given twice.

    tree                        what holds for all trees: classes, objective, names of features
    Tree=0 ...                  splits (features, thresholds, children) and the values of leaves
    end of trees
    pandas_categorical:[...]    categories of pandas columns, in order
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openfate.bank.sklearn_models import Unchecked

_OBJECTIVES = {
    "classes": ("binary", "multiclass", "multiclassova", "cross_entropy"),
    "numbers": (
        *("regression", "regression_l1", "huber", "fair", "poisson", "quantile", "mape"),
        *("gamma", "tweedie", "cross_entropy", "lambdarank", "rank_xendcg"),
    ),
}
_OBJECTIVE = re.compile(r"([a-z_0-9]+)((?: [a-z_]+:[-+.0-9eE]{1,30}| sqrt)*)")
_INFO = re.compile(r"none|\[[-+.0-9a-z]{1,40}:[-+.0-9a-z]{1,40}\]|-?[0-9]{1,12}(:-?[0-9]{1,12})*")
_CATEGORICAL, _MOST_KINDS = 1, 15  # bits of a decision: by category; default side, kind of missing
_MOST = 2**31 - 1


def clean_lightgbm(content: bytes, n_classes: int) -> str:
    """The text of a model, with nothing in it but what was checked.

    Parameters
    ----------
    n_classes
        Of the bundle; 0 for numbers.

    Raises
    ------
    Unchecked
        Where it is no model, or one that a prediction would not survive.
    """
    try:
        text = content.decode()
        head, *trees = re.split(r"^Tree=[0-9]+$", text.partition("\nend of trees")[0], flags=re.M)
        told = _pairs(head)
        n_features = _one_integer(told, "max_feature_idx") + 1
        lines = _clean_head(told, n_classes, n_features)
        blocks = [
            f"Tree={at}\n{_clean_tree(_pairs(tree), n_features)}\n\n\n"
            for at, tree in enumerate(trees)
        ]
        categories = _categories(text)
    except (KeyError, ValueError, OverflowError, RecursionError) as error:
        raise Unchecked(f"it is no text of LightGBM ({error!r})") from None
    if not blocks or len(blocks) % _one_integer(told, "num_tree_per_iteration"):
        raise Unchecked(f"it has {len(blocks)} trees")
    lines.append(f"tree_sizes={' '.join(str(len(block)) for block in blocks)}")
    head = "\n".join(lines)
    return (
        f"{head}\n\n{''.join(blocks)}end of trees\n\nfeature_importances:\n\nparameters:\n"
        f"end of parameters\n\npandas_categorical:{json.dumps(categories)}\n"
    )


def _pairs(text: str) -> dict[str, str]:
    """The lines NAME=VALUE; a name that comes twice is refused, for who knows which one counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name in found and name:
            raise ValueError(f"{name} twice")
        found[name] = value
    return found


def _clean_head(told: dict[str, str], n_classes: int, n_features: int) -> list[str]:
    version, names = told["version"], told["feature_names"].split(" ")
    infos = told["feature_infos"].split(" ")
    n_outputs, n_trees = (_one_integer(told, n) for n in ("num_class", "num_tree_per_iteration"))
    wanted = n_classes if n_classes > 2 else 1
    if not re.fullmatch("v[234]", version) or not 1 <= n_features <= 10_000_000:
        raise Unchecked(f"it is of version {version!r}, with {n_features} features")
    if n_outputs != wanted or n_trees != wanted:
        raise Unchecked(f"it has {n_outputs} outputs for {n_classes} classes")
    if len(names) != n_features or len(infos) != n_features or not all(names):
        raise Unchecked("it has other names than features")
    if not all(_INFO.fullmatch(info) for info in infos):
        raise Unchecked("it tells ranges of features that are none")
    lines = [
        "tree",
        f"version={version}",
        f"num_class={n_outputs}",
        f"num_tree_per_iteration={n_trees}",
        "label_index=0",
        f"max_feature_idx={n_features - 1}",
    ]
    if (objective := _objective(told.get("objective"), n_classes)) is not None:
        lines.append(f"objective={objective}")
    if "average_output" in told:
        lines.append("average_output")
    return [*lines, f"feature_names={' '.join(names)}", f"feature_infos={' '.join(infos)}"]


def _objective(text: str | None, n_classes: int) -> str | None:
    if text is None and not n_classes:
        return None
    found = _OBJECTIVE.fullmatch(text or "")
    if found is None or found[1] not in _OBJECTIVES["classes" if n_classes else "numbers"]:
        raise Unchecked(f"it has the objective {text!r}")
    options = dict(part.split(":") for part in found[2].split() if ":" in part)
    if not np.isfinite([float(value) for value in options.values()]).all():
        raise Unchecked(f"it has the objective {text!r}")
    of_many = found[1].startswith("multiclass")
    if of_many != (n_classes > 2) or (of_many and options.get("num_class") != str(n_classes)):
        raise Unchecked(f"it has the objective {text!r} for {n_classes} classes")
    if float(options.get("sigmoid", 1)) <= 0:
        raise Unchecked(f"it has the objective {text!r}")
    return text


def _clean_tree(told: dict[str, str], n_features: int) -> str:
    n_leaves, n_cat = _one_integer(told, "num_leaves"), _one_integer(told, "num_cat")
    if n_leaves < 1 or told.get("is_linear", "0") != "0":
        raise Unchecked(f"a tree has {n_leaves} leaves, or is linear")
    # WHY: LightGBM makes room for so many before it reads them.
    if n_leaves > len(told["leaf_value"]):
        raise Unchecked(f"a tree lacks some of its {n_leaves} leaves")
    lines = [f"num_leaves={n_leaves}", f"num_cat={n_cat}"]
    n_splits = n_leaves - 1
    if n_splits:
        feature = _integers(told, "split_feature", n_splits)
        kind = _integers(told, "decision_type", n_splits)
        threshold = _numbers(told, "threshold", n_splits)
        left, right = (_integers(told, f"{side}_child", n_splits) for side in ("left", "right"))
        if not ((feature >= 0) & (feature < n_features)).all():
            raise Unchecked("a tree asks for a feature that is not there")
        if not ((kind >= 0) & (kind <= _MOST_KINDS)).all():
            raise Unchecked("a tree decides in a way that is none")
        _check_children(left, right, n_leaves)
        category = threshold[(kind & _CATEGORICAL) != 0]
        if not ((category >= 0) & (category < n_cat) & (category == np.floor(category))).all():
            raise Unchecked("a tree asks for categories that are not there")
        for name in ("split_feature", "threshold", "decision_type", "left_child", "right_child"):
            lines.append(f"{name}={told[name]}")
    elif n_cat:
        raise Unchecked("a tree of one leaf has categories")
    if not np.isfinite(_numbers(told, "leaf_value", n_leaves)).all():
        raise Unchecked("a leaf has a value that is no number")
    lines.append(f"leaf_value={told['leaf_value']}")
    if n_cat:
        lines += _clean_categories(told, n_cat)
    return "\n".join([*lines, "is_linear=0", "shrinkage=1"])


def _check_children(left: NDArray[np.int64], right: NDArray[np.int64], n_leaves: int) -> None:
    """A child is ~leaf, or a later split: then there is no cycle."""
    parent = np.arange(n_leaves - 1)
    for child in (left, right):
        is_leaf = child < 0
        if not np.where(
            is_leaf, ~child < n_leaves, (child > parent) & (child < n_leaves - 1)
        ).all():
            raise Unchecked("a tree has a child that is not behind its parent")


def _clean_categories(told: dict[str, str], n_cat: int) -> list[str]:
    if n_cat < 1 or n_cat > len(told["cat_boundaries"]):
        raise Unchecked(f"a tree has {n_cat} sets of categories")
    ends = _integers(told, "cat_boundaries", n_cat + 1)
    bits = _integers(told, "cat_threshold", len(told["cat_threshold"].split(" ")), 2**32 - 1)
    if ends[0] != 0 or (np.diff(ends) < 0).any() or ends[-1] != len(bits) or (bits < 0).any():
        raise Unchecked("a tree has categories of another length")
    return [f"{name}={told[name]}" for name in ("cat_boundaries", "cat_threshold")]


# ---- numbers -------------------------------------------------------------------------------------

_DIGITS = re.compile(r"[-+.0-9a-zA-Z ]*")


def _one_integer(told: dict[str, str], name: str) -> int:
    return int(_integers(told, name, 1)[0])


def _integers(told: dict[str, str], name: str, n: int, most: int = _MOST) -> NDArray[np.int64]:
    found = np.array([int(token) for token in _tokens(told, name, n)], dtype=np.int64)
    if (np.abs(found) > most).any():
        raise Unchecked(f"{name} is too large")
    return found


def _numbers(told: dict[str, str], name: str, n: int) -> NDArray[np.float64]:
    found = np.array(_tokens(told, name, n), dtype=np.float64)
    if np.isnan(found).any():
        raise Unchecked(f"{name} holds what is no number")
    return found


def _tokens(told: dict[str, str], name: str, n: int) -> list[str]:
    """Exactly so many, of letters and digits alone, one blank between: all readers see the same."""
    tokens = told[name].split(" ")
    if len(tokens) != n or not _DIGITS.fullmatch(told[name]) or "" in tokens:
        raise Unchecked(f"{name} has {len(tokens)} entries, not {n}")
    return tokens


def _categories(text: str) -> Any:
    """Lists of texts, numbers or booleans; LightGBM takes the last such line."""
    _, mark, last = text.rpartition("\npandas_categorical:")
    found = json.loads(last) if mark else None
    if found is None:
        return None
    for values in found if isinstance(found, list) else [None]:
        if not isinstance(values, list) or not all(
            isinstance(value, str | int | float | bool) for value in values
        ):
            raise Unchecked("it has categories that are no lists")
    return found
