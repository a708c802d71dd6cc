"""What the estimators share: a network on standardized inputs, trained by any method."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import _check_sample_weight, _check_y, check_is_fitted, validate_data
from torch import Tensor, nn

from fsvi.calibration import Calibration
from fsvi.diagnosis.drift import Seen, Sketch
from fsvi.diagnosis.findings import Diagnosis
from fsvi.errors import FileFormatError, InvalidInputError
from fsvi.estimators.distance import NUM_FEATURES, distance_aware, with_distance
from fsvi.estimators.members import train_members
from fsvi.estimators.rows import Scaler, repeat_rows
from fsvi.functions.contexts import ShiftedRows
from fsvi.likelihoods import Categorical, Gaussian
from fsvi.methods.base import Method
from fsvi.methods.files import as_tree, from_tree
from fsvi.methods.registry import make_method
from fsvi.networks import Network, TabularFeatures
from fsvi.networks.devices import find_device
from fsvi.serialization import ESTIMATOR, Configurable, building_from, check_draws, plain, read_tree, write_tree
from fsvi.tables import Table, TableEncoder, as_table, is_mixed
from fsvi.training import History, fit

Array = NDArray[Any]
Trained = tuple[Method, Tensor, Tensor]
"""A method, and the rows that it was trained on with their weights."""
_SEEDS = 2**31 - 1
_ROWS = 10_000
"""Rows that are predicted at a time, all their draws in memory."""
_NESTED = "settings__"
_TRAINING, _PATIENCE, _NOISE = {"epochs": 300, "batch_size": 128, "lr": 5e-3}, 50, 0.5
"""Training of other networks and methods, and where their noise starts, for standardized targets."""
_HIDDEN = (64, 64)
"""Hidden layers of the network that other methods train."""
_LEAST_HELD_OUT = 10
"""Fewer rows than these cannot say when to stop."""


@dataclass(repr=False, eq=False)
class Estimator(Configurable, BaseEstimator):  # type: ignore[misc]
    """A network on standardized inputs, trained by a method.

    Inputs are arrays of numbers, or frames of pandas or polars whose columns may also hold strings, categories, truth
    values and dates. Missing values are allowed: the training median replaces numbers and dates, next to a new input
    that says where, and in columns of categories they are a category of their own. A category that was never seen
    has 1 in an input that is 0 in all training rows. A column of strings with another value in nearly every row is left
    out, with a warning.

    The default network is eight small networks in one (`TabularFeatures`), each with held-out rows of its own. These
    decide when to stop and how large the noise of each row is. "fsvi" adds a Gaussian process on random features of it
    (`DistanceFeatures`), whose posterior is the optimum of FSVI's objective in closed form, with the network as its
    mean. Its variance returns to the prior's in gaps of the data and beyond them. "map" is the network alone. Features
    of the distance from the training range, which no inference learns, make the network's outputs fade and the variance
    grow far outside. A `module` of yours gets the same features and the same posterior; it is trained as a point
    estimate first, with one noise for all rows.

    Args:
        method: A name that `fsvi.make_method` knows: "fsvi", "map", "laplace", "ensemble:map", …
        module: A network to start from, which is copied, or a function (n_inputs, n_outputs) -> network; None takes the
            default. Its inputs are the encoded columns, `encoder_.outputs`.
        columns: What columns hold, by name, where it should not be detected: "number", "category" (for codes that look
            like numbers), "date", or "ignore".
        settings: Further arguments of the method, such as {"prior_variance": 2.0}; in a grid search, each can be set by
            itself, as `settings__prior_variance`. For "fsvi" also `num_features`, the number of random features.
        epochs: How often to go through the data, at most; None takes a number of steps that suits the table.
        batch_size: Rows per step; None is 128, and fewer in small tables.
        lr: Learning rate; None is 0.06 for the default network, 0.005 for others.
        num_samples: Draws of the function that make a prediction.
        device: Where to train and predict, such as "cuda", or "auto" for the first accelerator that works; None for
            the CPU.
        progress: Whether `fit` shows a progress bar; None shows it in a terminal. The default network has none.
        random_state: Seed of the network's first parameters, of training and of prediction.

    Attributes:
        method_: The trained method.
        history_: What happened in training the network.
        encoder_: How columns become numbers.
        target_name_: The target's name, if a column of a data frame was given.
        calibration_: What `calibrate` learned, or None.
        n_features_in_: Number of columns.
        feature_names_in_: Their names, if a data frame gave any.
    """

    method: str = "fsvi"
    _: KW_ONLY
    module: nn.Module | Callable[[int, int], nn.Module] | None = None
    columns: Mapping[str, str] | None = None
    settings: Mapping[str, Any] | None = None
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    num_samples: int = 100
    device: str | torch.device | None = None
    progress: bool | None = False
    random_state: int | np.random.RandomState | None = None

    _transient = ("module", "device", "progress")  # a file has the trained network; the others belong to a machine

    # Parameters -----------------------------------------------------------------------------------------------------

    def set_params(self, **params: Any) -> Any:
        """Change parameters; `settings__name=value` changes or adds one of the `settings`."""
        nested = {name.removeprefix(_NESTED): params.pop(name) for name in list(params) if name.startswith(_NESTED)}
        super().set_params(**params)
        if nested:
            self.settings = {**(self.settings or {}), **nested}
        return self

    # Data -----------------------------------------------------------------------------------------------------------

    def _gather(self, X: Any, y: Any, sample_weight: Any, **checks: Any) -> tuple[Array, Array, Array]:
        """Encoded inputs, targets as they were given, and weights, of rows that count at all."""
        name = getattr(y, "name", None)
        self.target_name_ = None if name is None else str(name)
        table = self._checked(X, is_mixed(X) or bool(self.columns), y=None if y is None else "no_validation")
        if isinstance(X, Table):  # read from a file: frames of its columns can be predicted too
            self.feature_names_in_ = np.array(X.names, dtype=object)
        y = _check_y(y, **checks, estimator=self)
        check_consistent_length(table, y)
        weights = _check_sample_weight(sample_weight, y, dtype=np.float64, ensure_non_negative=True)
        counted = weights > 0
        if not counted.any():
            raise InvalidInputError("Sample weights must contain at least one non-zero number: all rows were left out.")
        table, y, weights = table.take(counted), y[counted], weights[counted]
        self.encoder_ = TableEncoder.learn(table, self.columns, weights)
        self.sketch_ = Sketch.learn(self.encoder_, table)
        for name, _ in self.encoder_.left_out:
            if name not in (self.columns or {}):
                warnings.warn(f"column {name!r} is left out: nearly every row has another text in it.", stacklevel=3)
        return self.encoder_.transform(table), y, weights

    def _checked(self, X: Any, as_is: bool, **given: Any) -> Table:
        """Rows as a table, after scikit-learn's checks; columns that are not numbers are left to the encoder."""
        if as_is:
            validate_data(self, X, skip_check_array=True, **given)
            return as_table(X)
        x = validate_data(self, X, dtype=np.float64, order="C", ensure_all_finite="allow-nan", **given)
        return as_table(x, getattr(self, "feature_names_in_", None))

    def _table(self, X: Any) -> Table:
        """New rows, validated."""
        check_is_fitted(self)
        if isinstance(X, Table):
            return X
        names = getattr(self, "feature_names_in_", None)
        if names is not None and hasattr(X, "columns") and set(X.columns) == set(names):
            X = X[list(names)]  # columns may come in any order
        only_numbers = all(column.kind == "number" for column in self.encoder_.columns)
        return self._checked(X, is_mixed(X) or not only_numbers, reset=False)

    def _inputs(self, X: Any) -> Tensor:
        """New rows as the network takes them; values unlike training are warned of."""
        table = self._table(X)
        encoded, surprises = self.encoder_.examine(table)
        for surprise in surprises:
            warnings.warn(surprise, stacklevel=4)
        return torch.as_tensor(self.scaler_.transform(encoded))

    # Training -------------------------------------------------------------------------------------------------------

    def _train(self, x: Array, y: Array, weights: Array) -> None:
        """Train on inputs in their own units and targets as the network is to see them."""
        self.seed_ = int(check_random_state(self.random_state).randint(_SEEDS))
        self.calibration_: Calibration | None = None
        self.scaler_ = Scaler.learn(x, weights)
        settings = dict(copy.deepcopy(self.settings or {}))
        is_fsvi = self.method == "fsvi"
        name, given = ("map", {}) if is_fsvi else (self.method, settings)
        x = self.scaler_.transform(x)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed_)
            if self.module is None and name == "map":
                method, inputs, counts = self._train_members(x, y, weights, given)
            else:
                method, inputs, counts = self._train_method(x, y, weights, name, given)
            self.method_: Method = distance_aware(method, inputs, counts, settings) if is_fsvi else method

    def _train_members(self, x: Array, y: Array, weights: Array, given: Any) -> Trained:
        """The default network."""
        device = torch.device("cpu") if self.device is None else find_device(self.device)
        is_classes = is_classifier(self)
        inputs, counts = (torch.as_tensor(part, dtype=torch.float32, device=device) for part in (x, weights))
        targets = torch.as_tensor(y, dtype=torch.int64 if is_classes else torch.float32, device=device)
        outputs = len(self.classes_) if is_classes else 2 * y.shape[1]
        trained, self.history_ = train_members(inputs, targets, counts, outputs, self.epochs, self.batch_size, self.lr)
        # In double precision, a prediction does not depend on which rows stand next to it.
        inputs, counts = inputs.double(), counts.double()
        likelihood = Categorical() if is_classes else Gaussian(heteroscedastic=True)
        method = make_method("map", trained.double(), likelihood, **given)
        method.check_inputs(inputs[:2])
        method.num_data = round(float(weights.sum()))
        return method.eval(), inputs, counts

    def _train_method(self, x: Array, y: Array, weights: Array, name: str, given: Any) -> Trained:
        """The user's network, or another method."""
        outputs = len(self.classes_) if is_classifier(self) else y.shape[1]
        likelihood = Categorical() if is_classifier(self) else Gaussian(_NOISE, learn_noise=True)

        def default(columns: int, outputs: int) -> nn.Module:
            features = TabularFeatures.for_rows(torch.as_tensor(x).float(), _HIDDEN, members=1)
            return nn.Sequential(features, nn.Linear(_HIDDEN[-1], outputs))

        module: Any = default if self.module is None else self.module
        if not callable(module):
            raise InvalidInputError(
                f"module={module!r} must be a torch.nn.Module, a function (n_inputs, n_outputs) -> Module, or None."
            )
        net = module if isinstance(module, nn.Module) else lambda: module(x.shape[1], outputs)
        method = make_method(name, net, likelihood, **{"context": ShiftedRows(), **given})
        method.check_inputs(torch.as_tensor(x[:2]).to(method.dtype))
        if method.network.num_outputs != outputs:
            raise InvalidInputError(f"module has {method.network.num_outputs} outputs; the data need {outputs}.")
        if not all(part._takes_weights for part in method.modules() if isinstance(part, Method)):
            x, y, weights = repeat_rows(x, y, weights, self.method)
        data = [torch.as_tensor(part) for part in (x, y, weights)]
        size = int(max(0.1 * len(y), min(0.2 * len(y), 100)))  # a tenth, and up to a fifth of small tables
        held_out, kept = torch.randperm(len(y)).tensor_split([size if size >= _LEAST_HELD_OUT else 0])
        parts = data if bool((data[2] != 1).any()) else data[:2]
        given = {name: value for name in _TRAINING if (value := getattr(self, name)) is not None}
        if len(held_out):
            given |= {"validation": tuple(part[held_out] for part in parts), "patience": _PATIENCE}
        given |= {"seed": self.seed_, "device": self.device, "progress": self.progress}
        self.history_ = fit(method, tuple(part[kept] for part in parts), **{**_TRAINING, **given})
        if len(held_out):
            reestimate_noise(method, *(part[held_out] for part in data))
        inputs, _, counts = (part[kept].to(method.device, method.dtype) for part in data)
        return method, inputs, counts

    # Prediction -----------------------------------------------------------------------------------------------------

    def _predict(self, inputs: Tensor, num_samples: int) -> Any:
        """The prediction before any calibration, in the targets' units, in the memory of the CPU."""
        return self.method_.predict(inputs, num_samples, self.seed_).to("cpu")

    def _parts(self, X: Any) -> Iterator[Any]:
        """These predictions of some thousand rows at a time: all draws for many rows would not fit into memory."""
        return (self._predict(part, self.num_samples) for part in self._inputs(X).split(_ROWS))

    def predictive(self, X: Any) -> Any:
        """The predictive distribution, with the parts of its uncertainty; `fsvi.metrics` and referral read it.

        Args:
            X: Rows.
        """
        return self._calibrated(self._predict(self._inputs(X), self.num_samples))

    # Trust ----------------------------------------------------------------------------------------------------------

    def check(self, X: Any) -> Diagnosis:
        """Say whether new rows look like the training rows, with a false alarm in at most 1% of checks.

        Columns are compared one by one, so a change only in how columns go together is not seen.

        Args:
            X: New rows, at least some dozens.
        """
        seen = Seen(self.sketch_, self.encoder_)
        seen.add(self._table(X))
        return seen.diagnosis()

    # Calibration ----------------------------------------------------------------------------------------------------

    def _fit_calibration(self, X: Any, y: Any, steps: Sequence[Any]) -> None:
        """Learn the steps from held-out rows; `y` are labels 0..C−1 or targets."""
        calibration = Calibration(copy.deepcopy(list(steps)))
        p = self._predict(self._inputs(X), self.num_samples)
        self.calibration_ = calibration.fit(p, np.array(y), seed=self.seed_)  # pandas: read-only

    def _calibrated(self, p: Any) -> Any:
        """The prediction with the scalings that `calibrate` learned, if it did."""
        return p if self.calibration_ is None else self.calibration_(p)

    @property
    def _is_conformal(self) -> bool:
        return self.calibration_ is not None and self.calibration_.conformal is not None

    # Files ----------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to one file, without pickle and without training rows; see `load`.

        The file holds the trained network, how columns become numbers, the labels or the targets' scale, the
        calibration and all parameters but `module`, `device` and `progress`.
        """
        check_is_fitted(self)
        estimator = self.config()
        if isinstance(self.random_state, np.random.RandomState):
            estimator["settings"]["random_state"] = self.seed_
        learned = {name: value for name, value in vars(self).items() if name.endswith("_")}
        parts = {"method": as_tree(learned.pop("method_")), "history": asdict(learned.pop("history_"))}
        write_tree(path, {"estimator": estimator, "learned": plain(learned), **parts}, ESTIMATOR)

    @classmethod
    def load(cls, path: str | os.PathLike[str], net: nn.Module | None = None) -> Any:
        """Read what `save` wrote.

        Args:
            path: The file.
            net: The architecture, where `module` was a network that a file cannot describe; see `fsvi.load`.
        """
        tree = read_tree(path, ESTIMATOR)
        with building_from(path):
            estimator = Configurable.from_config(tree["estimator"], progress=False)
            if not isinstance(estimator, cls):
                raise FileFormatError(f"{path} holds a {type(estimator).__name__}, not a {cls.__name__}.")
            model: Any = estimator
            for name, value in tree["learned"].items():
                if name.startswith("_") or not name.endswith("_"):
                    raise FileFormatError(f"{path} has the learned value {name!r}, which no estimator has.")
                if name in ("classes_", "feature_names_in_"):
                    value = np.array(value, dtype=object if isinstance(value[0], str) else None)
                vars(model)[name] = Configurable.from_config(value) if isinstance(value, Mapping) else value
            check_draws(model.num_samples)
            if not isinstance(model.target_name_, (str, type(None))):
                raise FileFormatError(f"{path} has the target {model.target_name_!r}, which is not a name.")
            columns, scaled = len(model.encoder_.outputs), len(model.scaler_.mean)
            if columns != scaled:
                raise FileFormatError(f"{path} has {columns} encoded columns, but scales {scaled}.")
            if net is not None and model.method == "fsvi":  # the user's module got random features in training
                network = Network(net).examined(torch.zeros(2, columns, dtype=next(net.parameters()).dtype))
                net = with_distance(network, columns, (model.settings or {}).get("num_features", NUM_FEATURES))
            model.history_ = History(**tree["history"])
            model.method_ = from_tree(tree["method"], path, net)
            labels, num_outputs = tree["learned"].get("classes_"), model.method_.network.num_outputs
            kinds = {type(label) for label in labels or ()}
            if labels is not None and (len(labels) != num_outputs or kinds not in ({str}, {int}, {float}, {bool})):
                raise FileFormatError(f"{path} has {len(labels)} labels that do not fit the network's outputs.")
            model._calibrated(model._predict(torch.zeros(1, columns, dtype=torch.float64), 1))  # shows forged values
        return model

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


@torch.no_grad()
def reestimate_noise(method: Method, x: Tensor, y: Tensor, weights: Tensor) -> None:
    """Set a learned noise to the errors on held-out rows; those on rows that were trained on are too small.

    The factor 1.1 (n + 2)/n makes up for two things: the same rows have chosen the best epoch, and a variance from n
    rows is itself uncertain. Without the first, 95% intervals covered 93.5% on average over seven tables.
    """
    likelihood = method.likelihood
    if not isinstance(likelihood, Gaussian) or not likelihood.learn_noise:
        return
    x, y = method.check_batch(x, y)
    prediction: Any = method.predict(x)
    counts = weights.to(y)[:, None]
    squares = (y - prediction.mean).square() - prediction.samples.var(0, correction=0)
    noise = (counts * squares).sum(0) / counts.sum() * 1.1 * (1 + 2 / float(counts.sum()))
    likelihood.log_noise.copy_(0.5 * torch.maximum(noise, 0.01 * likelihood.noise.square()).log())
