"""scikit-learn's models in files of skops: which ones, with which attributes, and their reader.

skops trusts every estimator of scikit-learn with any attributes.  That is too much for a file from
elsewhere: a `Pipeline` whose ``memory`` is a folder unpickles what lies there, and a tree is an
array of indices that compiled code follows without a look.  Here a file is read without skops, by
the few kinds of nodes that plain data needs: nothing else can be in what comes out.

- Classes are those of `_FITTED`; attributes are a class's parameters and the names beside it.
- Trees are checked before they are made: children behind their parents, so that there is no cycle,
  features in range, shapes that fit.
- What no prediction needs (generators of random numbers, optimisers) is not read at all.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openfate.errors import InputError

_EVERY = "n_features_in_ feature_names_in_ _sklearn_version _sklearn_output_config"
_LINEAR = "classes_ coef_ intercept_ n_iter_"
_BAYES = "class_count_ class_log_prior_ classes_ feature_count_ feature_log_prob_"
_TREE = "classes_ class_weight max_features_ n_classes_ n_outputs_ tree_"
_FOREST = (
    "_n_samples _n_samples_bootstrap class_weight classes_ estimator estimator_ estimator_params "
    "estimators_ n_classes_ n_outputs_ oob_score_ oob_decision_function_ oob_prediction_"
)
_BOOSTING = (
    "_loss alpha classes_ estimators_ init_ max_features_ n_classes_ n_estimators_ "
    "n_trees_per_iteration_"
)
_HISTOGRAMS = (
    "_baseline_prediction _bin_mapper _fitted_with_sw _is_categorical_remapped _label_encoder "
    "_loss _n_features _predictors _preprocessor _random_seed _use_validation_data classes_ "
    "do_early_stopping_ is_categorical_ n_trees_per_iteration_"
)
_ADA = "classes_ estimator_ estimator_errors_ estimator_params estimator_weights_ estimators_ "
_NETWORK = (
    "_label_binarizer _no_improvement_count best_loss_ best_validation_score_ classes_ coefs_ "
    "intercepts_ loss loss_ n_iter_ n_layers_ n_outputs_ out_activation_ t_"
)
_CHOSEN = "alpha_ alphas_ best_score_ dual_gap_ l1_ratio l1_ratio_ mse_path_ solver_"
_BAYESIAN = "X_offset_ X_scale_ alpha_ lambda_ scores_ sigma_"
_TOGETHER = (
    "_label_encoder _n_feature_outs classes_ estimators_ final_estimator_ le_ named_estimators_ "
    "stack_method stack_method_"
)
_CATEGORIES = (
    "_drop_idx_after_grouping _infrequent_enabled _infrequent_indices _default_to_infrequent_"
    "mappings _missing_indices _n_features_outs categories_ classes_ drop_idx_ encodings_ "
    "target_mean_ target_type_"
)
_SCALER = (
    "center_ data_max_ data_min_ data_range_ max_abs_ mean_ min_ n_samples_seen_ scale_ var_ "
    "n_quantiles_ quantiles_ references_ _scaler lambdas_"
)
_COMPONENTS = (
    "_fit_svd_solver components_ explained_variance_ explained_variance_ratio_ mean_ n_components_ "
    "n_samples_ noise_variance_ singular_values_"
)

# What a file may hold: module, class, and the attributes that a fitted one has.
_FITTED: dict[str, dict[str, str]] = {
    "sklearn.linear_model._base": {"LinearRegression": f"{_LINEAR} rank_ singular_"},
    "sklearn.linear_model._logistic": {
        "LogisticRegression": _LINEAR,
        "LogisticRegressionCV": f"{_LINEAR} C_ Cs_ l1_ratio_ l1_ratios_",
    },
    "sklearn.linear_model._ridge": dict.fromkeys(
        ("Ridge", "RidgeCV", "RidgeClassifier", "RidgeClassifierCV"),
        f"{_LINEAR} {_CHOSEN} _label_binarizer",
    ),
    "sklearn.linear_model._coordinate_descent": dict.fromkeys(
        ("Lasso", "LassoCV", "ElasticNet", "ElasticNetCV"), f"{_LINEAR} {_CHOSEN}"
    ),
    "sklearn.linear_model._least_angle": dict.fromkeys(
        ("Lars", "LassoLars"), f"{_LINEAR} {_CHOSEN} active_ coef_path_"
    ),
    "sklearn.linear_model._bayes": dict.fromkeys(
        ("BayesianRidge", "ARDRegression"), f"{_LINEAR} {_BAYESIAN}"
    ),
    "sklearn.linear_model._huber": {"HuberRegressor": f"{_LINEAR} outliers_ scale_"},
    "sklearn.linear_model._quantile": {"QuantileRegressor": _LINEAR},
    "sklearn.linear_model._glm.glm": dict.fromkeys(
        ("PoissonRegressor", "GammaRegressor", "TweedieRegressor"), f"{_LINEAR} _base_loss"
    ),
    "sklearn.linear_model._stochastic_gradient": dict.fromkeys(
        ("SGDClassifier", "SGDRegressor"), f"{_LINEAR} _expanded_class_weight t_"
    ),
    "sklearn.svm._classes": dict.fromkeys(("LinearSVC", "LinearSVR"), _LINEAR),
    "sklearn.discriminant_analysis": {
        "LinearDiscriminantAnalysis": f"{_LINEAR} _max_components _n_features_out covariance_ "
        "explained_variance_ratio_ means_ priors_ scalings_ xbar_",
        "QuadraticDiscriminantAnalysis": "classes_ covariance_ means_ priors_ rotations_ scalings_",
    },
    "sklearn.naive_bayes": {
        "GaussianNB": "class_count_ class_prior_ classes_ epsilon_ theta_ var_",
        "BernoulliNB": _BAYES,
        "MultinomialNB": _BAYES,
        "ComplementNB": f"{_BAYES} feature_all_",
        "CategoricalNB": f"{_BAYES} category_count_ n_categories_",
    },
    "sklearn.neural_network._multilayer_perceptron": dict.fromkeys(
        ("MLPClassifier", "MLPRegressor"), _NETWORK
    ),
    "sklearn.dummy": {
        "DummyClassifier": "_strategy class_prior_ classes_ n_classes_ n_outputs_ sparse_output_",
        "DummyRegressor": "constant_ n_outputs_",
    },
    "sklearn.tree._classes": dict.fromkeys(
        (
            *("DecisionTreeClassifier", "DecisionTreeRegressor"),
            *("ExtraTreeClassifier", "ExtraTreeRegressor"),
        ),
        _TREE,
    ),
    "sklearn.ensemble._forest": dict.fromkeys(
        (
            *("RandomForestClassifier", "RandomForestRegressor"),
            *("ExtraTreesClassifier", "ExtraTreesRegressor"),
        ),
        _FOREST,
    ),
    "sklearn.ensemble._gb": dict.fromkeys(
        ("GradientBoostingClassifier", "GradientBoostingRegressor"), _BOOSTING
    ),
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting": dict.fromkeys(
        ("HistGradientBoostingClassifier", "HistGradientBoostingRegressor"), _HISTOGRAMS
    ),
    "sklearn.ensemble._weight_boosting": {
        "AdaBoostClassifier": f"{_ADA} n_classes_",
        "AdaBoostRegressor": _ADA,
    },
    "sklearn.ensemble._voting": dict.fromkeys(("VotingClassifier", "VotingRegressor"), _TOGETHER),
    "sklearn.ensemble._stacking": dict.fromkeys(
        ("StackingClassifier", "StackingRegressor"), _TOGETHER
    ),
    "sklearn.calibration": {"CalibratedClassifierCV": "calibrated_classifiers_ classes_"},
    "sklearn.isotonic": {
        "IsotonicRegression": "X_max_ X_min_ X_thresholds_ y_thresholds_ increasing_"
    },
    "sklearn.pipeline": {"Pipeline": ""},
    "sklearn.compose._target": {
        "TransformedTargetRegressor": "_training_dim regressor_ transformer_"
    },
    "sklearn.compose._column_transformer": {
        "ColumnTransformer": "_columns _n_features _name_to_fitted_passthrough _remainder "
        "_transformer_to_input_indices output_indices_ sparse_output_ transformers_"
    },
    "sklearn.impute._base": {
        "SimpleImputer": "_fill_dtype _fit_dtype indicator_ statistics_",
        "MissingIndicator": "_n_features _precomputed features_",
    },
    "sklearn.preprocessing._data": dict.fromkeys(
        (
            *("StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler", "Normalizer"),
            *("QuantileTransformer", "PowerTransformer", "Binarizer"),
        ),
        _SCALER,
    ),
    "sklearn.preprocessing._discretization": {
        "KBinsDiscretizer": "_encoder bin_edges_ n_bins_",
    },
    "sklearn.preprocessing._encoders": dict.fromkeys(
        ("OneHotEncoder", "OrdinalEncoder"), _CATEGORIES
    ),
    "sklearn.preprocessing._target_encoder": {"TargetEncoder": _CATEGORIES},
    "sklearn.preprocessing._function_transformer": {"FunctionTransformer": ""},
    "sklearn.preprocessing._label": {
        "LabelEncoder": "classes_",
        "LabelBinarizer": "classes_ sparse_input_ y_type_",
    },
    "sklearn.preprocessing._polynomial": {
        "PolynomialFeatures": "_max_degree _min_degree _n_out_full n_output_features_"
    },
    "sklearn.decomposition._pca": {"PCA": _COMPONENTS},
    "sklearn.decomposition._truncated_svd": {"TruncatedSVD": _COMPONENTS},
    "sklearn.feature_selection._variance_threshold": {"VarianceThreshold": "variances_"},
}
# Parts of these that are no estimators, with all their attributes.
_PARTS: dict[str, dict[str, str]] = {
    "sklearn.calibration": {
        "_CalibratedClassifier": "estimator calibrators classes method",
        "_SigmoidCalibration": "a_ b_ _sklearn_version",
    },
    "sklearn.ensemble._hist_gradient_boosting.binning": {
        "_BinMapper": "n_bins subsample is_categorical known_categories random_state n_threads "
        "bin_thresholds_ n_bins_non_missing_ is_categorical_ missing_values_bin_idx_ "
        "_sklearn_version"
    },
    "sklearn.ensemble._hist_gradient_boosting.predictor": {
        "TreePredictor": "nodes binned_left_cat_bitsets raw_left_cat_bitsets"
    },
    "sklearn.utils._bunch": {"Bunch": ""},
}
# What no prediction reads: None in its place.
_UNREAD = frozenset(
    "_rng _random_state _feature_subsample_rng random_state _optimizer _loss_function_ _scorer "
    "_sample_weight _best_coefs _best_intercepts loss_curve_ validation_scores_ train_score_ "
    "validation_score_ oob_improvement_ oob_scores_ coefs_paths_ scores_ monotonic_cst scoring cv "
    "interaction_cst metric".split()
)
# Settings among these: read where they are one plain value, so that the model can be trained again.
SETTINGS = frozenset("random_state monotonic_cst scoring cv interaction_cst metric".split())
# Made anew: what they hold but the number of classes is the same in every one of a class.
_LOSSES = frozenset(
    "HalfBinomialLoss HalfMultinomialLoss HalfSquaredError AbsoluteError HalfPoissonLoss "
    "HalfGammaLoss HalfTweedieLoss HalfTweedieLossIdentity PinballLoss HuberLoss "
    "ExponentialLoss".split()
)
_METHODS = ("predict_proba", "decision_function", "predict")
_NUMBERS = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 str_".split()
)
_DEEPEST = 60  # nodes within nodes; a pipeline of a forest has some twenty
_MOST_JOBS = 256
_MOST_PRODUCTS = 1_000_000  # columns that PolynomialFeatures may make


class Unchecked(Exception):  # noqa: N818 - no error of the user's: `trusted` may still read it
    """What is wrong with a file, or what in it is not on the lists."""

    def __str__(self) -> str:
        # WHY: a name in the file may be what no terminal can show.
        return super().__str__().encode(errors="backslashreplace").decode()


def read_sklearn(content: bytes) -> Any:
    """Read a fitted model of scikit-learn from a file that skops wrote.

    Raises
    ------
    Unchecked
        Where it is something else than the lists allow.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return _Reader(archive).read_model()
    except Unchecked:
        raise
    except Exception as error:  # whatever scikit-learn makes of odd attributes
        raise Unchecked(f"it is damaged ({error!r})") from None


class _Reader:
    """One file."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED:  # WHY: as skops writes; no bombs
                raise Unchecked(f"its part {entry.filename!r} is compressed")
        self._archive = archive

    def read_model(self) -> Any:
        """The estimator."""
        model = self._read(json.loads(self._archive.read("schema.json")))
        if not hasattr(model, "predict"):
            raise Unchecked(f"it holds {type(model).__name__}, which is no model")
        return model

    def _read(self, node: Any, depth: int = 0) -> Any:
        if depth > _DEEPEST:
            raise Unchecked("it is nested too deeply")
        loader, inner = node["__loader__"], depth + 1
        match loader:
            case "JsonNode":
                return json.loads(node["content"])
            case "ListNode":
                return [self._read(one, inner) for one in node["content"]]
            case "TupleNode":
                return tuple(self._read(one, inner) for one in node["content"])
            case "SetNode":
                return {self._read(one, inner) for one in node["content"]}
            case "DictNode":
                return self._read_dict(node, inner)
            case "NdArrayNode":
                return self._read_array(node, inner)
            case "DTypeNode":
                return self._read(node["content"], inner).dtype
            case "SliceNode":
                return slice(*(_integer(node["content"][n]) for n in ("start", "stop", "step")))
            case "TypeNode":
                return _number_type(node)
            case "TreeNode":
                return self._read_tree(node, inner)
            case "ObjectNode":
                return self._read_object(node, inner)
        raise Unchecked(f"it holds a {str(loader).removesuffix('Node')}")

    def _read_dict(self, node: Any, depth: int) -> dict[Any, Any]:
        kinds = [kind["__class__"] for kind in node["key_types"]["content"]]
        return {
            _key(key, kind): self._read(value, depth)
            for kind, (key, value) in zip(kinds, node["content"].items(), strict=True)
        }

    def _read_array(self, node: Any, depth: int) -> Any:
        if node["type"] == "json":
            return self._read_objects(node, depth)
        array = _load_array(self._archive.read(node["file"]))
        if node["__class__"] == "ndarray":
            return array
        return _number_type(node)(array)

    def _read_objects(self, node: Any, depth: int) -> NDArray[np.object_]:
        """An array of texts, or of estimators."""
        shape = tuple(_integer(n) for n in self._read(node["shape"], depth))
        items = _flat([self._read(one, depth) for one in node["content"]], len(shape))
        if math.prod(shape) != len(items):
            raise Unchecked("an array has another shape than it says")
        found = np.empty(len(items), dtype=object)
        for at, item in enumerate(items):
            found[at] = item
        return found.reshape(shape)

    def _read_tree(self, node: Any, depth: int) -> Any:
        """A compiled tree, which takes whatever indices it is given."""
        n_features, n_classes, n_outputs = self._read(node["__reduce__"]["args"], depth)
        state = self._read(node["content"], depth)
        _check_tree(state, n_features, n_classes, n_outputs)
        tree = _class_of("sklearn.tree._tree", "Tree")(n_features, n_classes, n_outputs)
        tree.__setstate__(state)
        return tree

    def _read_object(self, node: Any, depth: int) -> Any:
        module, name = node["__module__"], node["__class__"]
        if module == "sklearn._loss.loss" and name in _LOSSES:
            return self._make_loss(node, depth)
        fitted = _FITTED.get(module, {}).get(name)
        part = _PARTS.get(module, {}).get(name)
        if fitted is None and part is None:
            raise Unchecked(f"it holds the type {module}.{name}")
        made = _class_of(module, name)
        allowed = set(_EVERY.split()) if part is None else set()
        allowed |= set((fitted or part or "").split())
        if fitted is not None and hasattr(made, "_get_param_names"):
            allowed |= set(made._get_param_names())
        attributes = self._read_attributes(node, depth, allowed, name)
        if name == "Bunch":  # a dict whose keys are attributes too; nothing asks for those
            return dict(attributes)
        model = made.__new__(made)
        if fitted is None:
            vars(model).update(attributes)
        else:
            model.__setstate__(attributes)
        needed, check = _CHECKS.get(name, ("", None))
        if check is not None and needed in vars(model):  # a template of an ensemble is not fitted
            check(model)
        return model

    def _read_attributes(
        self, node: Any, depth: int, allowed: set[str], name: str
    ) -> dict[str, Any]:
        content = node["content"]
        if content["__loader__"] != "DictNode":
            raise Unchecked(f"{name} holds no attributes")
        found: dict[str, Any] = {}
        for attribute, value in content["content"].items():
            is_plain = attribute in SETTINGS and value["__loader__"] == "JsonNode"
            if attribute in _UNREAD and not is_plain:
                found[attribute] = None
                continue
            if attribute not in allowed and name != "Bunch":
                raise Unchecked(f"{name} has the attribute {attribute!r}")
            found[attribute] = self._read(value, depth)
            _check_setting(name, attribute, found[attribute])
        return found

    def _make_loss(self, node: Any, depth: int) -> Any:
        loss = _class_of("sklearn._loss.loss", node["__class__"])
        if node["__class__"] != "HalfMultinomialLoss":
            return loss()
        n_classes = _integer(self._read(node["content"]["content"]["n_classes"], depth))
        return loss(n_classes=n_classes)


# ---- plain values --------------------------------------------------------------------------------


def _load_array(content: bytes) -> NDArray[Any]:
    """An array in numpy's format; its length is looked at before it is made."""
    file, form = io.BytesIO(content), np.lib.format
    version = form.read_magic(file)
    read_header = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}
    if version not in read_header:
        raise Unchecked(f"an array has the version {version}")
    shape, _, dtype = read_header[version](file)
    if dtype.hasobject or dtype.itemsize * math.prod(shape) != len(content) - file.tell():
        raise Unchecked(f"an array of {dtype} has another length than it says")
    array: NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    return array


def _number_type(node: Any) -> Any:
    if node["__module__"] != "numpy" or node["__class__"] not in _NUMBERS:
        raise Unchecked(f"it holds the type {node['__module__']}.{node['__class__']}")
    return getattr(np, node["__class__"])


def _key(text: str, kind: str) -> Any:
    if kind == "str":
        return text
    if kind.startswith(("int", "uint")):
        return int(text)
    if kind.startswith("float"):
        return float(text)
    if kind.startswith("bool"):
        return text == "True" or text == "true"
    raise Unchecked(f"a key of the type {kind}")


def _integer(value: Any) -> Any:
    """An integer or None; a size that is neither is no size."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer)):
        raise Unchecked(f"{value!r} stands for an integer")
    return value


def _flat(items: list[Any], n_axes: int) -> list[Any]:
    for _ in range(n_axes - 1):
        items = [one for inner in items for one in inner]
    return items


def _class_of(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def _check_setting(name: str, attribute: str, value: Any) -> None:
    """Refuse what would make a model read files, start workers or call what a file names."""
    if attribute in ("memory", "func", "inverse_func", "_preprocessor") and value is not None:
        raise Unchecked(f"{name} has {attribute}={value!r}")
    if attribute == "n_jobs" and value is not None:
        if abs(_integer(value)) > _MOST_JOBS:
            raise Unchecked(f"{name} has n_jobs={value}")
    if attribute in ("stack_method_", "stack_method"):
        named = value if isinstance(value, list) else [value]
        if not set(named) <= {*_METHODS, "auto", None}:
            raise Unchecked(f"{name} would call {value!r}")


# ---- trees ---------------------------------------------------------------------------------------


def _check_tree(state: Any, n_features: Any, n_classes: Any, n_outputs: Any) -> None:
    """Refuse a tree that prediction would leave, or never leave."""
    nodes, values = state["nodes"], state["values"]
    if set(state) - {"max_depth", "node_count", "nodes", "values"}:
        raise Unchecked("a tree has other parts")
    n_classes = np.asarray(n_classes)
    shape = (len(nodes), n_outputs, n_classes.max(initial=1))
    good = (
        *(type(n) is int and n >= 1 for n in (n_features, n_outputs, state["node_count"])),
        type(state["max_depth"]) is int,
        isinstance(nodes, np.ndarray) and nodes.ndim == 1 and nodes.flags.c_contiguous,
        state["node_count"] == len(nodes),
        n_classes.shape == (n_outputs,) and n_classes.dtype == np.intp,
        bool((n_classes >= 1).all()) and values.shape == shape and values.dtype == np.float64,
        values.flags.c_contiguous and bool(np.isfinite(values).all()),
    )
    if not all(good):
        raise Unchecked("a tree has parts of other shapes")
    left, right = nodes["left_child"], nodes["right_child"]
    leaf = left == -1
    _check_children(left[~leaf], right[~leaf], np.flatnonzero(~leaf), len(nodes))
    feature = nodes["feature"][~leaf]
    if not (right[leaf] == -1).all() or not ((feature >= 0) & (feature < n_features)).all():
        raise Unchecked("a tree asks for a feature that is not there")


def _check_children(
    left: NDArray[Any], right: NDArray[Any], parent: NDArray[Any], n_nodes: int
) -> None:
    """Children stand behind their parents, as all trees are written: then there is no cycle."""
    for child in (left.astype(np.int64), right.astype(np.int64)):
        if not ((child > parent) & (child < n_nodes)).all():
            raise Unchecked("a tree has a child that is not behind its parent")


def _check_width(model: Any) -> None:
    """One tree, over the columns that its owner takes, and of the classes that it tells."""
    tree = model.tree_
    if type(tree).__name__ != "Tree" or _integer(model.n_features_in_) != tree.n_features:
        raise Unchecked("a tree is over other columns than its owner")
    if _integer(model.n_outputs_) != tree.n_outputs:
        raise Unchecked("a tree has other outputs than its owner")
    if hasattr(model, "classes_") and tree.n_outputs == 1:
        if len(model.classes_) != tree.max_n_classes or tree.max_n_classes != model.n_classes_:
            raise Unchecked("a tree has other classes than its owner")


def _check_forest(model: Any) -> None:
    if not isinstance(model.estimators_, list) or not model.estimators_:
        raise Unchecked("a forest has no trees")
    for tree in model.estimators_:
        if not hasattr(tree, "tree_") or tree.n_features_in_ != _integer(model.n_features_in_):
            raise Unchecked("a forest has trees over other columns")
        if tree.n_outputs_ != model.n_outputs_:
            raise Unchecked("a forest has trees of other outputs")
        if hasattr(model, "n_classes_") and not np.array_equal(tree.n_classes_, model.n_classes_):
            raise Unchecked("a forest has trees of other classes")


def _check_boosting(model: Any) -> None:
    """The compiled sum over trees writes to as many columns as there are trees in a row."""
    trees, width = model.estimators_, _integer(model.n_trees_per_iteration_)
    if not isinstance(trees, np.ndarray) or trees.ndim != 2 or trees.shape[1] != width:
        raise Unchecked("gradient boosting has trees in another shape")
    for tree in trees.ravel():
        if not hasattr(tree, "tree_") or tree.n_features_in_ != _integer(model.n_features_in_):
            raise Unchecked("gradient boosting has trees over other columns")
        if tree.tree_.n_outputs != 1 or tree.tree_.max_n_classes != 1:
            raise Unchecked("gradient boosting has trees of several outputs")
    if not trees.size:
        raise Unchecked("gradient boosting has no trees")
    if type(model.init_).__name__ not in ("DummyClassifier", "DummyRegressor", "str"):
        raise Unchecked(f"gradient boosting starts with {type(model.init_).__name__}")
    first = model._raw_predict_init(np.zeros((1, model.n_features_in_), np.float32))
    if first.shape != (1, width) or (width > 1) != bool(model._loss.is_multiclass):
        raise Unchecked("gradient boosting starts with another shape")


def _check_predictor(predictor: Any) -> None:
    """A tree of histograms: children behind parents, and bits for each split by categories."""
    common = import_module("sklearn.ensemble._hist_gradient_boosting.common")
    nodes = predictor.nodes
    bits = (predictor.raw_left_cat_bitsets, predictor.binned_left_cat_bitsets)
    # WHY: by names and types, for a file of another machine or version may differ in alignment.
    if not isinstance(nodes, np.ndarray) or nodes.dtype != common.PREDICTOR_RECORD_DTYPE:
        raise Unchecked("a tree has nodes of another type")
    if nodes.ndim != 1 or not len(nodes):
        raise Unchecked("a tree has no nodes")
    if any(b.ndim != 2 or b.shape[1] != 8 or b.dtype != np.uint32 for b in bits):
        raise Unchecked("a tree has categories of another shape")
    inside = np.flatnonzero(nodes["is_leaf"] == 0)
    split = nodes[inside]
    _check_children(split["left"], split["right"], inside, len(nodes))
    by_category = split["is_categorical"] != 0
    if (split["bitset_idx"][by_category] >= min(map(len, bits))).any():
        raise Unchecked("a tree asks for categories that are not there")
    if not np.isfinite(nodes["value"]).all():
        raise Unchecked("a tree has values that are no numbers")


def _check_histograms(model: Any) -> None:
    n_features, bins = _integer(model.n_features_in_), model._bin_mapper
    categorical = np.asarray(bins.is_categorical_)
    if categorical.shape != (n_features,) or len(bins.bin_thresholds_) != n_features:
        raise Unchecked("histograms are of other columns")
    width = _integer(model.n_trees_per_iteration_)
    if np.shape(model._baseline_prediction) != (1, width):
        raise Unchecked("histogram boosting starts with another shape")
    for row in model._predictors:
        if len(row) != width:
            raise Unchecked("histogram boosting has trees in another shape")
        for predictor in row:
            split = predictor.nodes[predictor.nodes["is_leaf"] == 0]
            feature = split["feature_idx"].astype(np.int64)
            if not ((feature >= 0) & (feature < n_features)).all():
                raise Unchecked("a tree asks for a feature that is not there")
            if not (categorical[feature] >= (split["is_categorical"] != 0)).all():
                raise Unchecked("a tree asks for categories of a column of numbers")
    if (width > 1) != bool(model._loss.is_multiclass):
        raise Unchecked("histogram boosting has a loss of another shape")
    bins.make_known_categories_bitsets()  # what a prediction would do first


def _check_products(model: Any) -> None:
    degree = model.degree if isinstance(model.degree, int) else max(model.degree)
    n_features = _integer(model.n_features_in_)
    sizes = (math.comb(n_features + min(degree, 20), min(degree, 20)), model._n_out_full)
    if not 0 <= degree <= 20 or degree != model._max_degree or max(sizes) > _MOST_PRODUCTS:
        raise Unchecked(f"PolynomialFeatures has the degree {model.degree}")


def _check_dummy(model: Any) -> None:
    if np.size(model.constant_) != _integer(model.n_outputs_):
        raise Unchecked(f"DummyRegressor has {model.n_outputs_} outputs")


def _check_categories(model: Any) -> None:
    """Columns that one-hot rows get are no more than there are categories."""
    told = [_integer(n) for n in getattr(model, "_n_features_outs", [])]
    most = [len(values) + 1 for values in model.categories_]
    if len(told) > len(most) or any(n > m for n, m in zip(told, most, strict=False)):
        raise Unchecked("OneHotEncoder has more columns than categories")


# Of a class: the attribute that a fitted one has, and what is checked then.
_CHECKS: dict[str, tuple[str, Callable[[Any], None]]] = {
    **dict.fromkeys(_FITTED["sklearn.tree._classes"], ("tree_", _check_width)),
    **dict.fromkeys(_FITTED["sklearn.ensemble._forest"], ("estimators_", _check_forest)),
    **dict.fromkeys(_FITTED["sklearn.ensemble._gb"], ("estimators_", _check_boosting)),
    **dict.fromkeys(
        _FITTED["sklearn.ensemble._hist_gradient_boosting.gradient_boosting"],
        ("_predictors", _check_histograms),
    ),
    "TreePredictor": ("nodes", _check_predictor),
    "PolynomialFeatures": ("n_features_in_", _check_products),
    "DummyRegressor": ("constant_", _check_dummy),
    "OneHotEncoder": ("categories_", _check_categories),
}


def check_classes(model: Any, classes: list[Any]) -> None:
    """Refuse a model whose classes are not those of the bundle."""
    told = getattr(model, "classes_", None)
    if not classes or told is None:
        return
    if isinstance(told, np.ndarray) and told.ndim == 1 and told.tolist() != list(classes):
        few = told.tolist()[:5]
        raise InputError(f"the wrapped model has the classes {few}, not those of the bundle.")
