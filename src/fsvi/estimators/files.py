"""Estimators in files: one file without pickle that holds the network, the encoding of columns and everything else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import nn

from fsvi.errors import FileFormatError
from fsvi.estimators.distance import NUM_FEATURES, with_distance
from fsvi.methods.files import as_tree, from_tree
from fsvi.networks.network import Network
from fsvi.serialization import ESTIMATOR, Configurable, building_from, check_draws, plain, read_tree, write_tree
from fsvi.training import History

_ARRAYS = ("classes_", "feature_names_in_")


class Saved(Configurable):
    """An estimator that can be written to a file and read again, with identical predictions.

    A file does not hold `module` (it has the trained network itself), and `device` and `progress` belong to a machine.
    """

    _transient = ("module", "device", "progress")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to one file, without pickle and without training rows; see `load`.

        The file holds the trained network, how columns become numbers, the labels or the targets' scale, the
        calibration and all parameters but `module`, `device` and `progress`.
        """
        check_is_fitted(self)
        this: Any = self
        estimator = self.config()
        if isinstance(this.random_state, np.random.RandomState):
            estimator["settings"]["random_state"] = this.seed_
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
                if name in _ARRAYS:
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
        return model
