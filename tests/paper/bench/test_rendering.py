"""Tables of the benchmark."""

from rich.console import Console

from paper.bench.goals import Goal
from paper.bench.predictions import BenchPrediction, PredictionCost
from paper.bench.rendering import goal_table, prediction_table
from paper.bench.timing import Spread


def text(table) -> str:
    console = Console(width=130)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_predictions_and_goals_are_shown():
    spread = Spread(2.0, 1.5, 2.5)
    what = BenchPrediction("cnn", "last_layer", 100, 10)
    shown = text(prediction_table("Predictions", [PredictionCost(what, spread, spread)]))
    assert "Predictions" in shown and "last_layer" in shown and "2.0" in shown
    met, missed = (text(goal_table("Goals", [Goal("a ratio", value, 1.9)])) for value in (1.88, 1.92))
    assert "1.88" in met and "1.92" in missed and met.replace("1.88", "1.92") != missed
