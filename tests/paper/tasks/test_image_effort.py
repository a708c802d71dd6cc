from paper.tasks.images import ImageEffort


def test_a_subset_says_so():
    assert ImageEffort(None, None, 1, 1).notes() == []
    assert ImageEffort(1200, 50, 1, 1).notes() == ["subset: the first 1,200 training images and 50 test images"]
    assert ImageEffort(None, 50, 1, 1).notes() == ["subset: the first 50 test images"]
