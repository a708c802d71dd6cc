from paper.thinning import thin


def test_long_curves_keep_both_ends():
    values = thin(range(1000), 10)
    assert len(values) == 10 and values[0] == 0 and values[-1] == 999
    assert thin([1.0, 2.0], 10) == [1.0, 2.0]
