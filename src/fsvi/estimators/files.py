"""Estimators in files: one file without pickle that holds the network, the encoding of columns and everything else."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import nn

from fsvi.errors import FileFormatError
from fsvi.estimators.distance import NUM_FEATURES, with_distance
from fsvi.estimators.rows import Scaler
from fsvi.methods.files import as_tree, from_tree
from fsvi.networks.network import Network
from fsvi.serialization import ESTIMATOR, Configurable, building_from, check_draws, read_tree, write_tree
from fsvi.training import History

_MOST_LETTERS = 2**24
"""What labels may have, all as long as the longest."""


class Saved(Configurable):
    """An estimator that can be written to a file and read again, with identical predictions.

    A file does not hold `module` (it has the trained network itself), and `device` and `progress` belong to a machine.
    """

    _transient = ("module", "device", "progress")
    num_samples: int

    @abstractmethod
    def _target_tree(self) -> dict[str, Any]:
        """What was learned about targets, as plain values and tensors."""

    @abstractmethod
    def _load_target(self, tree: Mapping[str, Any]) -> None:
        """Undo `_target_tree`."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to one file, without pickle and without training rows; see `load`.

        The file holds the trained network, how columns become numbers, the labels or the targets' scale, the
        calibration and all parameters but `module`, `device` and `progress`.
        """
        check_is_fitted(self)
        write_tree(path, self._tree(), ESTIMATOR)

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
            check_draws(estimator.num_samples)
            estimator._load_tree(tree, path, net)
        return estimator

    def _tree(self) -> dict[str, Any]:
        this: Any = self
        names = getattr(self, "feature_names_in_", None)
        config = self.config()
        if isinstance(this.random_state, np.random.RandomState):
            config["settings"]["random_state"] = this.seed_
        return {
            "estimator": config,
            "encoder": this.encoder_.config(),
            "sketch": this.sketch_.config(),
            "scaler": scaler_tree(this.scaler_),
            "target": self._target_tree(),
            "features": {"count": this.n_features_in_, "names": None if names is None else names.tolist()},
            "target_name": this.target_name_,
            "seed": this.seed_,
            "history": asdict(this.history_),
            "calibration": None if this.calibration_ is None else this.calibration_.config(),
            "method": as_tree(this.method_),
        }

    def _load_tree(self, tree: Mapping[str, Any], path: str | os.PathLike[str], net: nn.Module | None) -> None:
        this: Any = self
        if net is not None and this.method == "fsvi":  # a module of the user's, which got random features in training
            columns = len(tree["scaler"]["mean"])
            network = Network(net).examined(torch.zeros(2, columns, dtype=next(net.parameters()).dtype))
            net = with_distance(network, columns, (this.settings or {}).get("num_features", NUM_FEATURES))
        this.method_ = from_tree(tree["method"], path, net)
        this.encoder_ = Configurable.from_config(tree["encoder"])
        this.sketch_ = Configurable.from_config(tree["sketch"])
        this.scaler_ = scaler_from(tree["scaler"])
        this.seed_, this.target_name_ = tree["seed"], tree["target_name"]
        calibration = tree["calibration"]
        this.calibration_ = None if calibration is None else Configurable.from_config(calibration)
        this.history_ = History(**tree["history"])
        this.n_features_in_ = tree["features"]["count"]
        if tree["features"]["names"] is not None:
            this.feature_names_in_ = np.array(tree["features"]["names"], dtype=object)
        self._load_target(tree["target"])
        if not isinstance(this.target_name_, (str, type(None))):
            raise FileFormatError(f"{path} has the target {this.target_name_!r}, which is not a name.")
        columns, scaled = len(this.encoder_.outputs), len(this.scaler_.mean)
        if columns != scaled:
            raise FileFormatError(f"{path} has {columns} encoded columns, but scales {scaled}.")


def scaler_tree(scaler: Scaler) -> dict[str, Any]:
    """A scaler as tensors."""
    return {"mean": torch.as_tensor(scaler.mean), "scale": torch.as_tensor(scaler.std)}


def scaler_from(tree: Mapping[str, Any]) -> Scaler:
    """Undo `scaler_tree`."""
    return Scaler(tree["mean"].numpy(), tree["scale"].numpy())


def labels_tree(labels: NDArray[Any]) -> dict[str, Any]:
    """Class labels, which may be numbers, strings or truth values."""
    return {"values": labels.tolist(), "dtype": "object" if labels.dtype.kind == "O" else labels.dtype.str}


def labels_from(tree: Mapping[str, Any]) -> NDArray[Any]:
    """Undo `labels_tree`; text has the length of the longest label, whatever the file says."""
    values, dtype = list(tree["values"]), tree["dtype"]
    if dtype == "object":
        return np.array(values, dtype=object)
    if np.dtype(dtype).kind not in "biufU":
        raise FileFormatError(f"labels cannot be of type {dtype!r}.")
    if np.dtype(dtype).kind != "U":
        return np.array(values, dtype=dtype)
    if len(values) * max(map(len, values), default=0) > _MOST_LETTERS:
        raise FileFormatError(f"{len(values)} labels are too long.")
    return np.array(values, dtype=str)
