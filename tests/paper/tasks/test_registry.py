"""Every task is described completely."""

import pytest

from paper.report.tables import PUBLISHED
from paper.tasks.registry import TASKS


@pytest.mark.parametrize("name", TASKS)
def test_the_description_of_a_task_is_complete(name):
    task = TASKS[name]
    assert task.name == name and task.section.about
    assert any(name in layout.tasks for layout in task.section.tables)


def test_tasks_of_a_sweep_share_it():
    for task in TASKS.values():
        others = [other for other in TASKS.values() if other.sweep.name == task.sweep.name]
        assert all(other.sweep == task.sweep for other in others)


def test_every_table_of_the_paper_has_its_columns():
    for name in PUBLISHED.keys() & TASKS.keys():
        shown = {column.name for layout in TASKS[name].section.tables for column in layout.columns}
        assert set(PUBLISHED[name]["columns"]) <= shown
