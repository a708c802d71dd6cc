"""Models of the kinds that people have, in tiny versions with random parameters, and data for each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from compat.graphs import rings
from fsvi.networks.resnet import Residual

N, T, WORDS, CLASSES = 12, 6, 20, 3


@dataclass(frozen=True)
class Case:
    """A model and what it needs."""

    make: Callable[[], nn.Module]
    x: Callable[[], Any]
    positions: tuple[int, ...] = ()
    stochastic: str | tuple[str, ...] = "all"
    head: str = "head"


class Recurrent(nn.Module):
    """Token ids → LSTM → classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 6, padding_idx=0)
        self.rnn = nn.LSTM(6, 8, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(ids))[0][:, -1])


class Encoder(nn.Module):
    """Token ids and a mask → transformer encoder → classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        layer = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=1, enable_nested_tensor=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.encoder(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
        weight = attention_mask[..., None].to(hidden)
        return self.head((hidden * weight).sum(1) / weight.sum(1))


class Tagger(nn.Module):
    """Token ids and a mask → classes of each token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        self.body = nn.Conv1d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        hidden = self.embed(input_ids) * attention_mask[..., None]
        return {"logits": self.head(torch.tanh(self.body(hidden.mT).mT)), "hidden": hidden}


class TwoInputs(nn.Module):
    """An image and a row of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.row = nn.Linear(5, 4)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, image: Tensor, row: Tensor) -> Tensor:
        return self.head(torch.cat([self.image(image), torch.tanh(self.row(row))], dim=1))


class UNet(nn.Module):
    """Down, up, a skip connection, and a 1×1 convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU())
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.head = nn.Conv2d(12, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        top = self.down(x)
        return self.head(torch.cat([top, self.up(self.deep(top))], dim=1))


class ResNet(nn.Module):
    """Two residual blocks with BatchNorm, the second one with a shortcut of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(self._block(3, 6, 1), self._block(6, 8, 2))
        self.head = nn.Linear(8, CLASSES)

    @staticmethod
    def _block(channels: int, width: int, stride: int) -> Residual:
        first = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        body = [first, nn.BatchNorm2d(width), nn.ReLU(), second, nn.BatchNorm2d(width)]
        return Residual(body, channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x).mean((2, 3)))


class ConvNeXt(nn.Module):
    """Depthwise convolution, LayerNorm over channels, inverted bottleneck, layer scale."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 2, stride=2)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm = nn.LayerNorm(8)
        self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = nn.Parameter(0.1 * torch.ones(8))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        hidden = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        hidden = self.scale * self.narrow(nn.functional.gelu(self.wide(hidden)))
        return self.head((x + hidden.permute(0, 3, 1, 2)).mean((2, 3)))


class MobileNet(nn.Module):
    """Inverted residual with squeeze and excitation, BatchNorm and hard activations."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish(),
            nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.Hardswish(),
        )  # fmt: skip
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 1), nn.Hardsigmoid()
        )
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        return self.head((hidden * self.squeeze(hidden)).mean((2, 3)))


class PooledConvolution(nn.Module):
    """A 1×1 convolution as the classifier, before or after the pool, as in SqueezeNet without its last ReLU."""

    def __init__(self, pool_first: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        self.pool_first, self.pool = pool_first, nn.AdaptiveAvgPool2d(1)
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        return (self.head(self.pool(hidden)) if self.pool_first else self.pool(self.head(hidden))).flatten(1)


class GraphNetwork(nn.Module):
    """A layer that adds up neighbors, then the mean over the nodes of each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        source, target = edge_index
        hidden = torch.tanh(self.body(x + torch.zeros_like(x).index_add(0, target, x[source])))
        sums = hidden.new_zeros(int(batch[-1]) + 1, 8).index_add(0, batch, hidden)
        return self.head(sums / batch.bincount()[:, None])


def ids() -> Tensor:
    return torch.randint(1, WORDS, (N, T))


def text() -> dict[str, Tensor]:
    """Ids with a mask; the second half of the texts is shorter."""
    mask = torch.ones(N, T, dtype=torch.long)
    mask[N // 2 :, T - 2 :] = 0
    return {"input_ids": ids() * mask, "attention_mask": mask}


def images(size: int = 8) -> Tensor:
    return torch.randn(N, 3, size, size)


def bert(kind: str = "BertForSequenceClassification") -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        num_labels=CLASSES, max_position_embeddings=16,
    )  # fmt: skip
    return getattr(transformers, kind)(config)


def vit() -> nn.Module:
    import transformers

    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4,
            num_labels=CLASSES,
        )
    )  # fmt: skip


def gpt2() -> nn.Module:
    import transformers

    return transformers.GPT2ForSequenceClassification(
        transformers.GPT2Config(
            vocab_size=WORDS, n_embd=8, n_layer=1, n_head=2, n_positions=16, num_labels=CLASSES, pad_token_id=0,
            bos_token_id=1, eos_token_id=1,
        )
    )  # fmt: skip


def lora() -> nn.Module:
    import peft

    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    return peft.get_peft_model(bert(), config)


_LORA_HEAD = "base_model.model.classifier.modules_to_save.default"

CASES = {
    "bert": Case(bert, text, head="classifier"),
    "bert tagger": Case(lambda: bert("BertForTokenClassification"), text, (T,), head="classifier"),
    "vit": Case(vit, lambda: {"pixel_values": images()}, head="classifier"),
    "gpt2": Case(gpt2, text, head="score"),
    "lora": Case(lora, text, stochastic=("*lora_*",), head=_LORA_HEAD),
    "lstm": Case(Recurrent, ids),
    "encoder": Case(Encoder, text),
    "tagger": Case(Tagger, text, (T,)),
    "two inputs": Case(TwoInputs, lambda: (images(), torch.randn(N, 5))),
    "u-net": Case(UNet, images, (8, 8)),
    "graphs": Case(GraphNetwork, lambda: rings(N, CLASSES)),
    "resnet": Case(ResNet, images),
    "resnet, last block": Case(ResNet, images, stochastic=("blocks.1.*", "head")),
    "convnext": Case(ConvNeXt, images),
    "mobilenet": Case(MobileNet, images),
    "convolution on pooled features": Case(lambda: PooledConvolution(True), images),
    "pooled convolution": Case(lambda: PooledConvolution(False), images),
}
HUGGING_FACE = ("bert", "bert tagger", "vit", "gpt2", "lora")
