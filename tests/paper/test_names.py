"""Names as people write them."""

import pytest

from paper.names import full_name, split_label


@pytest.mark.parametrize(
    "label, method, context",
    [
        ("map", "MAP", None),
        ("ensemble:map", "Deep ensemble", None),
        ("fsvi (kmnist)", "FSVI", "KMNIST"),
        ("ensemble:fsvi (monochrome)", "FSVI ensemble", "monochrome"),
        ("something-new", "something-new", None),
    ],
)
def test_labels_are_split(label, method, context):
    assert split_label(label) == (method, context)
    assert full_name(label) == (method if context is None else f"{method} ({context})")
