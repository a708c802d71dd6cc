"""Can I trust this model? One set of checks for methods, for models of tables and for new rows."""

from __future__ import annotations

from typing import Any

from fsvi.diagnosis.findings import Diagnosis, Finding
from fsvi.diagnosis.methods import check_method
from fsvi.diagnosis.report import write_report
from fsvi.diagnosis.tables import diagnose_table
from fsvi.errors import InvalidInputError
from fsvi.inputs import is_structured
from fsvi.methods import Method
from fsvi.networks.devices import forked_random, seed_random
from fsvi.validation import check_count, check_type

__all__ = ["Diagnosis", "Finding", "diagnose", "write_report"]


def diagnose(
    model: Any,
    data: tuple[Any, ...],
    num_samples: int = 10,
    *,
    refit: bool = True,
    time: str | bool | None = None,
) -> Diagnosis:
    """Check whether a model can be trusted.

    A trained method is checked as it is: has it learned, are its standard deviations healthy, does the uncertainty
    grow away from the data, is it calibrated? Checks that do not apply are left out.

    A classifier or regressor for tables (`FSVIClassifier`, `FSVIRegressor`, fitted or not) is trained again on parts of
    the rows and measured on the others; if it was calibrated, so are these. The verdict is "trust" only if it beats
    guessing in a paired test, if what it promises comes true in both directions, if it notices rows unlike the data,
    and if the table itself gives no reason for doubt: repeated rows, a column that gives the target away, rows in order
    of time.

    Args:
        model: A trained method, or a classifier or regressor for tables.
        data: A pair (x, y); for methods preferably held out. For tables, sample weights may follow.
        num_samples: For methods, the number of draws that your predictions use.
        refit: For tables, whether to train again: on four fifths of up to 2,000 rows, five times, and once on larger
            tables. False measures the fitted model itself, on rows that it was not trained on.
        time: For tables, the column of dates or numbers that orders rows in time, so that later rows are held out;
            "rows" for the order of the rows. None takes the first column of dates, if there is one; False none.

    Returns:
        The findings, each with a level, a sentence and numbers; and the verdict: "trust", "care" or "no".

    Examples:
        >>> x, y = fsvi.data.two_moons(100, noise=0.1, seed=0)
        >>> net = fsvi.networks.mlp(2, (20,), 2)
        >>> method = fsvi.FSVI(net, fsvi.Categorical(), fsvi.contexts.Uniform(widen=1.0))
        >>> history = fsvi.fit(method, (x, y), epochs=5, seed=0)
        >>> found = fsvi.diagnose(method, fsvi.data.two_moons(100, noise=0.1, seed=1))
        >>> found.verdict in ("trust", "care", "no")
        True
    """
    if not isinstance(data, (tuple, list)) or len(data) < 2:
        raise InvalidInputError(f"data is a {type(data).__name__}; a pair (x, y) is needed.")
    if not isinstance(model, Method) and hasattr(model, "fit") and hasattr(model, "get_params"):
        return diagnose_table(model, data, refit, time)
    check_type("model", model, Method, "a trained method, such as fsvi.FSVI after fsvi.fit, or an estimator for tables")
    check_count("num_samples", num_samples)
    if is_structured(data[0]):
        raise InvalidInputError(
            "diagnose measures distances between inputs, so it needs inputs in one tensor, not a tuple or dictionary."
        )
    with forked_random(model.device):
        seed_random(0, model.device)
        x, y = model.check_batch(data[0], data[1])
        if model.network.layout.positions:
            raise InvalidInputError("diagnose needs one prediction per input, but the network has one per position.")
        return check_method(model, x, y, num_samples)
