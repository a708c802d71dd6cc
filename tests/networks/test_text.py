"""The transformer encoder: masks, order of words, files, and the methods that use it."""

import pytest
import torch
from torch import nn

import fsvi
from fsvi.networks import TextEncoder


def encoder(**settings):
    torch.manual_seed(0)
    return TextEncoder(12, 3, **{"width": 8, "heads": 2, "length": 6, **settings}).eval()


def texts(num=8):
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(6) < torch.randint(1, 7, (num, 1), generator=generator)
    return {"input_ids": torch.randint(1, 12, (num, 6), generator=generator) * mask, "attention_mask": mask}


def test_padding_changes_nothing():
    net, x = encoder(layers=2), texts()
    alone = [net(ids[mask][None]) for ids, mask in zip(x["input_ids"], x["attention_mask"], strict=True)]
    filled = {**x, "input_ids": torch.where(x["attention_mask"], x["input_ids"], 7)}
    torch.testing.assert_close(net(**x), torch.cat(alone))
    torch.testing.assert_close(net(**filled), torch.cat(alone))


def test_attention_is_that_of_pytorch():
    block = encoder().blocks[0]
    x = texts()
    mask = x["attention_mask"]
    tokens = torch.randn(8, 6, 8)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    attention.in_proj_weight.data, attention.in_proj_bias.data = block.project.weight.data, block.project.bias.data
    attention.out_proj.load_state_dict(block.mix.state_dict())
    expected, _ = attention(tokens, tokens, tokens, key_padding_mask=~mask)
    bias = ((~mask).float() * torch.finfo(torch.float32).min)[:, None, None, :]
    torch.testing.assert_close(block._attend(tokens, bias)[mask], expected[mask])


@pytest.mark.parametrize("linearize", ["jvp", "conditional"])
def test_fsvi_with_every_parameter_random(linearize, tmp_path):
    x, y = texts(), torch.arange(8) % 3
    method = fsvi.FSVI(
        encoder(), fsvi.Categorical(), fsvi.contexts.ShuffledTokens(), linearize=linearize, num_context=4
    )
    fsvi.fit(method, (x, y), epochs=2, batch_size=4, progress=False)
    method.save(tmp_path / "text.fsvi")
    assert torch.equal(fsvi.load(tmp_path / "text.fsvi").predict(x).samples, method.predict(x).samples)
