from pathlib import Path

import fsvi.scoring.progress as progress
from fsvi.scoring.partitions import Partition


def test_rows_of_this_and_other_processes_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "_LINE_EVERY", 0.0)
    partitions = [Partition(Path(f"{name}.csv"), f"{name}.csv", tmp_path) for name in "abc"]
    partitions[1].progress_path.parent.mkdir(parents=True)
    partitions[1].progress_path.write_text("50")
    partitions[2].progress_path.write_text("")  # just being written
    told = []
    monkeypatch.setattr(progress, "is_watched", lambda: False)
    with progress.RowProgress(partitions, 300, told.append) as watched:
        watched.finish("a.csv", 100, is_new=False)
        watched._begun -= 1e6  # seconds: the 50 new rows came at a speed of nearly 0
    assert told[-1].startswith("150 of 300 rows, 1 of 3 files, 0 rows per second")
