import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import TensorDataset

import fsvi
from fsvi import contexts
from fsvi.errors import InvalidInputError
from fsvi.functions.contexts import general

BATCH = torch.zeros(4, 2)
IMAGES = torch.zeros(4, 3, 8, 8)


def assert_uniform(values, categories):
    """Counts of 0..categories−1 within five standard deviations of equal."""
    counts = torch.bincount(values.reshape(-1).long(), minlength=categories).double()
    expected = values.numel() / categories
    assert len(counts) == categories
    assert (counts - expected).abs().max() < 5 * math.sqrt(expected)


# Uniform --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [([-10, 0], [10, 1]), (-3, 2), (-1, [1, 4]), (torch.tensor([-1.0, 2]), 5.0)])
def test_uniform_fills_its_box(low, high):
    x = contexts.Uniform(low, high).sample(20_000, BATCH)
    low, high = (torch.as_tensor(bound, dtype=torch.float32).expand(2) for bound in (low, high))
    assert x.shape == (20_000, 2)
    assert (x >= low).all() and (x <= high).all()
    for dim in range(2):
        assert_uniform(((x[:, dim] - low[dim]) / (high[dim] - low[dim]) * 10).clamp_max(9.99).floor(), 10)
    assert torch.corrcoef(x.T)[0, 1].abs() < 5 / math.sqrt(len(x))


def test_uniform_takes_the_whole_training_sets_bounds_and_widens_them():
    x = torch.tensor([[-1.0, 0.0], [3.0, 10.0], [0.0, 5.0]])
    for widen, low, high in [(0.0, [-1, 0], [3, 10]), (0.5, [-3, -5], [5, 15])]:
        context = contexts.Uniform(widen=widen)
        context.prepare(x)
        drawn = context.sample(5_000, BATCH)
        margin = 0.01 * (torch.tensor(high) - torch.tensor(low))
        assert (drawn >= torch.tensor(low)).all() and (drawn <= torch.tensor(high)).all()
        assert (drawn.amin(0) < torch.tensor(low) + margin).all() and (
            drawn.amax(0) > torch.tensor(high) - margin
        ).all()


# Monochrome -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [True, False], ids=["given", "prepared"])
def test_monochrome_pixels_come_from_the_whole_training_set_independently_per_channel(given):
    """Every training pixel says which image, row and column it is from, and its sign and size which channel."""
    count, size, num = 20, 4, 20_000
    where = torch.arange(count * size * size).reshape(count, size, size).float()
    train = torch.stack([where, where + 10_000, where + 20_000], dim=1)
    context = contexts.Monochrome(train if given else None)
    context.prepare(torch.zeros_like(train) if given else train)
    x = context.sample(num, IMAGES)
    colours = x[:, :, 0, 0]
    assert x.shape == (num, 3, 8, 8) and torch.equal(x, colours[..., None, None].expand_as(x))
    sources = colours - torch.tensor([0.0, 10_000, 20_000])
    assert sources.min() >= 0 and sources.max() < where.numel()
    for channel in range(3):
        assert_uniform(sources[:, channel], where.numel())
    same_image = (sources[:, 0] // 16 == sources[:, 1] // 16).double().mean()
    assert abs(same_image - 1 / count) < 5 * math.sqrt(1 / count / num)
    assert (torch.corrcoef(sources.T) - torch.eye(3)).abs().max() < 5 / math.sqrt(num)


# Dataset and Batch ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tensor", "pairs", "items", "list"])
def test_dataset_gives_inputs_without_replacement(kind):
    data = torch.arange(10.0)[:, None]
    labels = torch.zeros(10)
    given = {"tensor": data, "pairs": TensorDataset(data, labels), "items": TensorDataset(data), "list": list(data)}[
        kind
    ]
    context = contexts.Dataset(given)
    draws = [context.sample(10, BATCH) for _ in range(2)]
    assert all(sorted(draw.reshape(-1).tolist()) == list(range(10)) for draw in draws)
    assert not torch.equal(*draws)
    assert_uniform(torch.cat([context.sample(3, BATCH) for _ in range(500)]), 10)
    assert context.sample(25, BATCH).shape == (25, 1)


def test_the_example_of_a_dataset_is_on_its_device():
    with FakeTensorMode():
        data = torch.zeros(4, 2, dtype=torch.int64, device="cuda")
        assert contexts.Dataset(data).example.device == data.device


# Corrupted ------------------------------------------------------------------------------------------------------------


def test_every_corrupted_image_is_one_of_five_spoiled_training_images():
    batch = torch.rand(5, 2, 8, 8)
    spoiled = contexts.Corrupted(noise=0.0).sample(4_000, batch)
    low, high = batch.amin((2, 3), keepdim=True), batch.amax((2, 3), keepdim=True)
    known = torch.cat([batch, low + high - batch, batch.rot90(1, (2, 3))])
    kind = (spoiled[:, None] - known).abs().amax((2, 3, 4)) < 1e-6
    matched = kind.any(1)
    assert_uniform(kind[matched].double().argmax(1), 15)
    tiles, own = (_tiles(images) for images in (spoiled[~matched], batch))
    shuffled = (tiles[:, None] == own).flatten(2).all(2).any(1)
    tolerance = 5 * math.sqrt(0.2 * 0.8 / 4_000)
    assert abs(shuffled.sum() / 4_000 - 0.2) < tolerance
    assert abs((~shuffled).sum() / 4_000 - 0.2) < tolerance, "enlarged details"


@pytest.mark.parametrize("upright", [True, False])
def test_an_enlarged_detail_is_a_quarter_to_a_half_of_the_image_from_anywhere(upright):
    """Pixels that count columns, or rows, show which ones a detail covers, and with which step."""
    columns = torch.arange(40.0).expand(2_000, 1, 20, 40)
    detail = general._enlarged(columns) if upright else general._enlarged(columns.mT).mT
    steps = detail.diff(dim=3)[..., 5:-5]
    size = steps.mean((1, 2, 3))
    assert detail.shape == columns.shape and steps.allclose(size[:, None, None, None], atol=1e-3)
    assert 0.25 <= size.min() < 0.26 and 0.49 < size.max() <= 0.5
    left = detail[:, 0, 0, 5] - 5.5 * size + 0.5  # where the detail begins, in pixels from the image's edge
    share = left / (40 * (1 - size))
    assert share.mean() == pytest.approx(0.5, abs=5 / math.sqrt(12 * 2_000))
    assert -1e-3 < share.min() < 0.01 and 0.99 < share.max() < 1.001
    assert detail.diff(dim=2).abs().max() < 1e-3, "rows that do not differ stay so"


def _tiles(images):
    """The 2×2 patches of each image, in an order that does not depend on where they are."""
    patches = images.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).reshape(len(images), 16, -1)
    return torch.stack([patch[patch[:, 0].argsort()] for patch in patches])


# Mixture --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num", "fractions", "counts"),
    [
        (10, [0.26, 0.74], [3, 7]),
        (3, [0.5, 0.5], [2, 1]),
        (1, [0.4, 0.6], [0, 1]),
        (7, [1 / 3, 1 / 3, 1 / 3], [2, 3, 2]),
    ],
)
def test_a_mixture_gives_every_part_its_share(num, fractions, counts):
    parts = [contexts.Dataset(torch.full((10, 2), float(i))) for i in range(len(fractions))]
    x = contexts.Mixture(parts, fractions).sample(num, BATCH)
    assert torch.bincount(x[:, 0].long(), minlength=len(counts)).tolist() == counts


# Errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: contexts.Uniform([0, 0], [1, 0]), "low < high"),
        (lambda: contexts.Uniform([0, 0], [1, 1, 1]), r"shapes \(2,\) and \(3,\)"),
        (lambda: contexts.Monochrome().prepare(BATCH), r"\(4, 2\)"),
        (lambda: contexts.Corrupted().sample(2, BATCH), r"\(4, 2\)"),
        (lambda: contexts.Dataset(torch.tensor([[0.0], [torch.nan]])), "NaN"),
        (lambda: contexts.Dataset(None).sample(1, BATCH), "saved"),
        (lambda: contexts.Mixture([contexts.Batch()], [0.9]), "sum to 1"),
        (
            lambda: contexts.Mixture([contexts.Batch(), contexts.Dataset(torch.zeros(4, 5))], [0.5, 0.5]).sample(
                4, BATCH
            ),
            r"different shapes, \(2,\) and \(5,\)",
        ),
    ],
)
def test_impossible_contexts_are_refused(make, said):
    with pytest.raises(InvalidInputError, match=said):
        make()


def test_two_methods_do_not_share_what_a_context_has_learned():
    net = torch.nn.Linear(2, 2)
    for context in (contexts.Uniform(), contexts.Mixture([contexts.Uniform(), contexts.Batch()], [0.5, 0.5])):
        first, second = (fsvi.FSVI(net, fsvi.Categorical(), context) for _ in range(2))
        x = torch.rand(30, 2)
        y = torch.zeros(30, dtype=torch.long)
        first.begin(x, y)
        second.begin(100 * x, y)
        assert first._points(x).abs().max() <= 1
