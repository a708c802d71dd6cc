"""What the estimators share: a network on standardized inputs, trained by any method."""

from __future__ import annotations

import copy
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import _check_sample_weight, _check_y, check_is_fitted, validate_data
from torch import Tensor, nn

from fsvi.calibration import Calibration
from fsvi.diagnosis.drift import Seen, Sketch
from fsvi.diagnosis.findings import Diagnosis
from fsvi.errors import InvalidInputError
from fsvi.estimators.defaults import HIDDEN, STEPS, fsvi_settings, num_held_out, reestimate_noise, widen
from fsvi.estimators.files import Saved
from fsvi.estimators.rows import repeat_rows, weighted_scaler
from fsvi.functions.contexts import Context, ShiftedRows
from fsvi.likelihoods import Likelihood
from fsvi.methods.base import Method
from fsvi.methods.registry import make_method
from fsvi.networks import mlp, table_mlp
from fsvi.tables import NumberColumn, Table, TableEncoder, as_table, is_mixed
from fsvi.training import fit
from fsvi.validation import check_count, check_fraction

_SEEDS = 2**31 - 1
_ROWS = 10_000
"""Rows that are predicted at a time, all their draws in memory."""
_NESTED = "settings__"


class Estimator(Saved, BaseEstimator):  # type: ignore[misc]
    """A network on standardized inputs, trained by a method.

    Inputs are arrays of numbers, or frames of pandas or polars whose columns may also hold strings, categories, truth
    values and dates. Missing values are allowed: the training median replaces numbers and dates, next to a new input
    that says where, and in columns of categories they are a category of their own. A category that was never seen is
    encoded as −1 in all inputs of its column, outside of the training data. A column of strings with another value in
    nearly every row is left out, with a warning.

    Args:
        method: A name that `fsvi.make_method` knows: "fsvi", "map", "laplace", "ensemble:map", …
        module: A network to start from, which is copied, or a function (n_inputs, n_outputs) -> network; None makes a
            fully connected one. Its inputs are the encoded columns, `encoder_.outputs`.
        hidden: Widths of that network's hidden layers.
        columns: What columns hold, by name, where it should not be detected: "number", "category" (for codes that look
            like numbers), "date", or "ignore".
        context: Where methods that look beyond the data do so, in standardized units; None takes
            `fsvi.contexts.ShiftedRows()`: training rows with columns pushed away from the data.
        settings: Further arguments of the method, such as {"num_context": 50}; in a grid search, each can be set by
            itself, as `settings__num_context`.
        epochs: How often to go through the data, at most.
        batch_size: Examples per step.
        lr: Learning rate of Adam, which falls to almost nothing along a cosine.
        validation_fraction: Share of the data held out to say when to stop, and how large the noise is. None holds out
            a tenth, and up to a fifth of small tables. 0, or fewer than 10 examples, trains for all epochs on all data.
        patience: Epochs without a better likelihood of the held-out data after which training stops; the parameters of
            the best epoch are kept.
        num_samples: Draws of the function that make a prediction.
        device: Where to train and predict, such as "cuda", or "auto" for the first accelerator that works; None for
            the CPU.
        progress: Whether to show a progress bar; None shows it in a terminal.
        random_state: Seed of the network's first parameters, of training and of prediction.

    Attributes:
        method_: The trained method.
        history_: What happened in training; for "fsvi", in training the point estimate that it starts from.
        widening_: For "fsvi", what happened when the last layer became random.
        encoder_: How columns become numbers.
        sketch_: How often columns had which values, for `check`.
        scaler_: How these numbers are standardized.
        seed_: What `random_state` gave.
        target_name_: The target's name, if a column of a data frame was given.
        calibration_: What `calibrate` learned, or None.
        n_features_in_: Number of columns.
        feature_names_in_: Their names, if a data frame gave any.
    """

    _activation: str = "tanh"
    """Of the network that is made where none is given."""

    def __init__(
        self,
        method: str = "fsvi",
        *,
        module: nn.Module | Callable[[int, int], nn.Module] | None = None,
        hidden: Sequence[int] = HIDDEN,
        columns: Mapping[str, str] | None = None,
        context: Context | None = None,
        settings: Mapping[str, Any] | None = None,
        epochs: int = 300,
        batch_size: int = 128,
        lr: float = 5e-3,
        validation_fraction: float | None = None,
        patience: int = 50,
        num_samples: int = 100,
        device: str | torch.device | None = None,
        progress: bool | None = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.method = method
        self.module = module
        self.hidden = hidden
        self.columns = columns
        self.context = context
        self.settings = settings
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.num_samples = num_samples
        self.device = device
        self.progress = progress
        self.random_state = random_state

    # Parameters -----------------------------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters; with `deep`, each of the `settings` too, as `settings__name`."""
        params: dict[str, Any] = super().get_params(deep)
        settings = self.settings if deep and isinstance(self.settings, Mapping) else {}
        return {**params, **{f"{_NESTED}{name}": value for name, value in settings.items()}}

    def set_params(self, **params: Any) -> Any:
        """Change parameters; `settings__name=value` changes or adds one of the `settings`."""
        nested = {name.removeprefix(_NESTED): params.pop(name) for name in list(params) if name.startswith(_NESTED)}
        super().set_params(**params)
        if nested:
            self.settings = {**(self.settings or {}), **nested}
        return self

    @property
    def partial_fit(self) -> Any:
        """There is none: `hasattr` says so, and the error says what to do."""
        raise AttributeError(
            f"{type(self).__name__} has no partial_fit: how strongly the prior counts depends on the number of all "
            "rows, so call fit with all of them, or train on a DataLoader with fsvi.fit."
        )

    # Data -----------------------------------------------------------------------------------------------------------

    def _gather(
        self, X: Any, y: Any, sample_weight: Any, **checks: Any
    ) -> tuple[NDArray[np.float64], NDArray[Any], NDArray[np.float64]]:
        """Encoded inputs, targets as they were given, and weights, of rows that count at all."""
        name = getattr(y, "name", None)
        self.target_name_ = None if name is None else str(name)
        table, y = self._see(X, y, **checks)
        weights = _check_weights(sample_weight, y)
        counted = weights > 0
        if not counted.all():
            table, y, weights = table.take(counted), y[counted], weights[counted]
        self.encoder_ = TableEncoder.learn(table, self.columns, weights)
        self.sketch_ = Sketch.learn(self.encoder_, table)
        for name, reason in self.encoder_.left_out:
            if name not in (self.columns or {}):
                warnings.warn(f"column {name!r} is left out ({reason}).", stacklevel=4)
        return self.encoder_.transform(table, warn=False), y, weights

    def _see(self, X: Any, y: Any, **checks: Any) -> tuple[Table, NDArray[Any]]:
        """Training data, validated as scikit-learn does it."""
        if is_mixed(X) or self.columns:
            validate_data(self, X, skip_check_array=True)
            y = _check_y(y, **checks, estimator=self)
            check_consistent_length(X, y)
            return as_table(X), y
        X, y = validate_data(self, X, y, dtype=np.float64, order="C", ensure_all_finite="allow-nan", **checks)
        return as_table(X, getattr(self, "feature_names_in_", None)), y

    def _table(self, X: Any) -> Table:
        """New rows, validated; values unlike training are warned of."""
        check_is_fitted(self)
        if all(isinstance(column, NumberColumn) for column in self.encoder_.columns) and not is_mixed(X):
            X = validate_data(self, X, dtype=np.float64, order="C", ensure_all_finite="allow-nan", reset=False)
            table = as_table(X, getattr(self, "feature_names_in_", None))
        else:
            if not isinstance(X, Table):  # whose columns may come in any order
                validate_data(self, X, skip_check_array=True, reset=False)
            table = as_table(X)
        for surprise in self.encoder_.surprises(table):
            warnings.warn(surprise, stacklevel=4)
        return table

    def _encoded(self, table: Table) -> Tensor:
        """Rows as the network takes them."""
        return self._standardized(self.encoder_.transform(table, warn=False))

    def _inputs(self, X: Any) -> Tensor:
        """New inputs as the network takes them."""
        return self._encoded(self._table(X))

    def _standardized(self, encoded: NDArray[np.float64]) -> Tensor:
        return torch.as_tensor(self.scaler_.transform(encoded))

    # Training -------------------------------------------------------------------------------------------------------

    def _train(
        self,
        x: NDArray[np.float64],
        y: NDArray[Any],
        weights: NDArray[np.float64],
        likelihood: Likelihood,
        num_outputs: int,
    ) -> None:
        """Train on inputs in their own units and targets as the network is to see them."""
        self.seed_ = int(check_random_state(self.random_state).randint(_SEEDS))
        self.calibration_: Calibration | None = None
        self.scaler_ = weighted_scaler(x, weights)
        x = self.scaler_.transform(x)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed_)
            method = self._make(torch.as_tensor(x), likelihood, num_outputs)
            if not all(part.takes_weights for part in method.modules() if isinstance(part, Method)):
                x, y, weights = repeat_rows(x, y, weights, self.method)
            data = [torch.as_tensor(part) for part in (x, y, weights)]
            held_out, kept = torch.randperm(len(y)).tensor_split([self._num_held_out(len(y))])
        if bool((data[2] == 1).all()):
            data.pop()
        self._fit_stages(method, tuple(part[kept] for part in data), tuple(part[held_out] for part in data))

    def _fit_stages(self, method: Method, rows: tuple[Tensor, ...], validation: tuple[Tensor, ...]) -> None:
        """Train; FSVI in two stages, see `fsvi.estimators.defaults`. Rows are (x, y) or (x, y, weights)."""
        options: dict[str, Any] = {"seed": self.seed_, "device": self.device, "progress": self.progress}
        has_validation = len(validation[0]) > 0
        stop: dict[str, Any] = {"validation": validation, "patience": self.patience} if has_validation else {}
        self.method_ = method
        self.history_ = fit(method, rows, epochs=self.epochs, batch_size=self.batch_size, lr=self.lr, **stop, **options)
        if has_validation:
            reestimate_noise(method, *validation)
        if self.method == "fsvi":
            steps = min(STEPS, self.epochs * math.ceil(len(rows[0]) / self.batch_size))
            context = copy.deepcopy(self.context)
            self.method_, self.widening_ = widen(method, rows, context, self.settings or {}, steps, **options)

    def _make(self, x: Tensor, likelihood: Likelihood, num_outputs: int) -> Method:
        """The method, once its network is known to have the right outputs; for FSVI, the point estimate before it."""
        networks = self._networks(x, num_outputs)
        context = ShiftedRows() if self.context is None else copy.deepcopy(self.context)
        given = dict(self.settings or {})
        is_fsvi = self.method == "fsvi"
        settings = fsvi_settings(likelihood, num_outputs, given) if is_fsvi else copy.deepcopy(given)
        method = make_method(self.method, networks, likelihood, context=context, **settings)
        method.see(x[:2].to(method.dtype))
        if method.network.num_outputs != num_outputs:
            raise InvalidInputError(f"module has {method.network.num_outputs} outputs; the data need {num_outputs}.")
        return make_method("map", method.network, likelihood) if is_fsvi else method

    def _networks(self, x: Tensor, num_outputs: int) -> nn.Module | Callable[[], nn.Module]:
        """What `make_method` takes: the network given, or a function that makes fresh ones."""
        module = self.module
        if isinstance(module, nn.Module):
            return module
        if module is None and not len(self.hidden):
            return lambda: mlp(x.shape[1], (), num_outputs).double()
        if module is None:
            return lambda: table_mlp(x, self.hidden, num_outputs, self._activation).double()
        if not callable(module):
            raise InvalidInputError(
                f"module={module!r} must be a torch.nn.Module, a function (n_inputs, n_outputs) -> Module, or None."
            )
        return lambda: module(x.shape[1], num_outputs)

    def _num_held_out(self, num: int) -> int:
        fraction = self.validation_fraction
        return num_held_out(num, None if fraction is None else check_fraction("validation_fraction", fraction))

    # Prediction -----------------------------------------------------------------------------------------------------

    def _predict(self, inputs: Tensor, num_samples: int, seed: int | None = None) -> Any:
        """The network's own prediction, of classes or of standardized targets, in the memory of the CPU."""
        prediction = self.method_.predict(inputs, num_samples, self.seed_ if seed is None else seed)
        for name, value in vars(prediction).items():
            setattr(prediction, name, value.cpu())
        return prediction

    def _parts(self, X: Any) -> Iterator[Any]:
        """Predictions of a few thousand rows at a time: all draws for many rows would not fit into memory."""
        table = self._table(X)
        for start in range(0, len(table), _ROWS):
            yield self._predict(self._encoded(table.take(slice(start, start + _ROWS))), self.num_samples)

    def _draws(self, X: Any, n_samples: int, random_state: Any) -> tuple[Any, Tensor, torch.Generator]:
        """A prediction, which of its draws to take for `n_samples`, and a generator for what is drawn from them.

        A method with fewer draws, such as a single network, gives each of them several times.
        """
        inputs = self._inputs(X)
        check_count("n_samples", n_samples)
        seed = int(check_random_state(random_state).randint(_SEEDS))
        p = self._predict(inputs, n_samples, seed)
        return p, torch.arange(n_samples) % len(p.samples), torch.Generator().manual_seed(seed)

    # Trust ----------------------------------------------------------------------------------------------------------

    def check(self, X: Any) -> Diagnosis:
        """Say whether new rows look like the training rows, with a false alarm in at most 1% of checks.

        Columns are compared one by one, so a change only in how columns go together is not seen.

        Args:
            X: New rows, at least some dozens.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the findings say it
            table = self._table(X)
        seen = Seen(self.sketch_, self.encoder_)
        seen.add(table)
        return seen.diagnosis()

    # Calibration ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def _raw_predictive(self, X: Any) -> Any:
        """The prediction before any calibration, in the targets' units."""

    def _in_target_units(self, p: Any) -> Any:
        """A prediction of the network in the targets' units."""
        return p

    def _fit_calibration(self, X: Any, y: Any, steps: Sequence[Any]) -> None:
        """Learn the steps from held-out rows; `y` are labels 0..C−1 or targets."""
        calibration = Calibration(copy.deepcopy(list(steps)))
        self.calibration_ = calibration.fit(self._raw_predictive(X), y, seed=self.seed_)

    def _calibrated(self, p: Any) -> Any:
        """The prediction with the scalings that `calibrate` learned, if it did."""
        return p if self.calibration_ is None else self.calibration_(p)

    @property
    def _is_conformal(self) -> bool:
        return self.calibration_ is not None and self.calibration_.conformal is not None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _check_weights(sample_weight: Any, y: NDArray[Any]) -> NDArray[np.float64]:
    """One weight per row, 1 without any."""
    weights: NDArray[np.float64] = _check_sample_weight(sample_weight, y, dtype=np.float64)
    if (weights < 0).any():
        raise InvalidInputError(
            "Negative values in data passed to `sample_weight`: weights count rows, so use 0 or more."
        )
    if not (weights > 0).any():
        raise InvalidInputError("Sample weights must contain at least one non-zero number: all rows were left out.")
    return weights
