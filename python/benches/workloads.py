"""Programs whose tensors have many sizes: two that train, and one that generates text in two ways."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """One layer of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any, cache: tuple[Any, Any] | None = None) -> tuple[Any, tuple[Any, Any]]:
        batch, length, width = x.shape
        query, key, value = self.mix(self.norms[0](x)).chunk(3, dim=-1)
        query, key, value = (t.view(batch, -1, self.heads, width // self.heads).transpose(1, 2) for t in (query, key, value))
        if cache is not None:
            key, value = torch.cat([cache[0], key], dim=2), torch.cat([cache[1], value], dim=2)
        weights = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5
        if length > 1:
            past = key.shape[2] - length
            mask = torch.ones(length, key.shape[2], dtype=torch.bool, device=x.device).tril(past)
            weights = weights.masked_fill(~mask, float("-inf"))
        mixed = (weights.softmax(dim=-1) @ value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.shrink(F.gelu(self.grow(self.norms[1](x)))), (key, value)


class Transformer(nn.Module):
    """A small language model."""

    def __init__(self, words: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: Any, caches: list[Any] | None = None) -> tuple[Any, list[Any]]:
        x, kept = self.words(ids), []
        for at, layer in enumerate(self.layers):
            x, cache = layer(x, caches[at] if caches else None)
            kept.append(cache)
        return self.head(x), kept


class Residual(nn.Module):
    """Two convolutions and what goes past them."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.past = nn.Conv2d(inside, outside, 1, stride, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)])

    def forward(self, x: Any) -> Any:
        inner = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(inner)) + self.past(x))


def _resnet(width: int) -> nn.Module:
    sizes = [(3, width, 2), (width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2), (4 * width, 8 * width, 2)]
    layers: list[nn.Module] = [Residual(*size) for size in sizes]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 1000))


def _begin(device: str, seed: int) -> tuple[random.Random, Any]:
    """Returns what the sizes of the steps are drawn from, and what their data is drawn from on the device."""
    torch.manual_seed(seed)
    return random.Random(seed), torch.Generator(device).manual_seed(seed)


def transformer(batch: int, steps: int, device: str, seed: int, small: bool) -> Iterator[float]:
    """Trains a transformer on sequences of all lengths; yields the loss of each step."""
    (numbers, data), words = _begin(device, seed), 256 if small else 32_000
    with torch.device(device):
        model = Transformer(words, *((32, 2, 2) if small else (1024, 8, 16)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    for _ in range(steps):
        length = numbers.randrange(8, 32) if small else numbers.randrange(64, 768)
        rows = max(1, batch * numbers.randrange(50, 101) // 100)
        ids = torch.randint(0, words, (rows, length + 1), device=device, generator=data)
        scores, _ = model(ids[:, :-1])
        loss = F.cross_entropy(scores.reshape(-1, words), ids[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield loss.item()


def resnet(batch: int, steps: int, device: str, seed: int, small: bool) -> Iterator[float]:
    """Trains a network of convolutions on pictures of all sizes; yields the loss of each step."""
    numbers, data = _begin(device, seed)
    with torch.device(device):
        model = _resnet(4 if small else 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, foreach=False)
    for _ in range(steps):
        side = numbers.randrange(16, 33) if small else 8 * numbers.randrange(12, 37)
        rows = max(2, batch * numbers.randrange(50, 101) // 100)
        pictures = torch.randn(rows, 3, side, side, device=device, generator=data)
        kinds = torch.randint(0, 1000, (rows,), device=device, generator=data)
        loss = F.cross_entropy(model(pictures), kinds)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield loss.item()


def generation(batch: int, steps: int, device: str, seed: int, small: bool) -> Iterator[float]:
    """Generates texts with caches that grow by a word at a time, for prompts of all lengths; yields a sum of each one's scores."""
    for is_last, scores in _words(batch, steps, device, seed, small):
        if is_last:
            yield scores.float().sum().item()


def decoding(batch: int, steps: int, device: str, seed: int, small: bool) -> Iterator[float]:
    """Generates the same texts and looks at every word, as whoever waits for the end of a text does."""
    for _, scores in _words(batch, steps, device, seed, small):
        yield scores.float().sum().item()


def _words(batch: int, steps: int, device: str, seed: int, small: bool) -> Iterator[tuple[bool, Any]]:
    """Generates texts; yields the scores of each word, and whether it is the last of its text."""
    (numbers, data), words = _begin(device, seed), 256 if small else 32_000
    with torch.device(device):
        model = Transformer(words, *((32, 2, 2) if small else (1024, 8, 16))).eval()
    for _ in range(steps):
        prompt, more = (8, 8) if small else (numbers.randrange(32, 512), numbers.randrange(16, 96))
        rows = max(1, batch * numbers.randrange(50, 101) // 100)
        ids = torch.randint(0, words, (rows, prompt), device=device, generator=data)
        with torch.no_grad():
            scores, caches = model(ids)
        for left in range(more, 0, -1):
            with torch.no_grad():
                scores, caches = model(scores[:, -1:].argmax(dim=-1), caches)
            yield left == 1, scores


ALL = {"transformer": transformer, "resnet": resnet, "generation": generation, "decoding": decoding}
#: The batch that is timed.
BATCHES = {"transformer": 8, "resnet": 64, "generation": 16, "decoding": 16}
#: The steps that are timed, after those that warm up.
STEPS = {"transformer": 30, "resnet": 30, "generation": 8, "decoding": 5}
#: The steps that a batch has to fit in.
FITTING_STEPS = {"transformer": 4, "resnet": 4, "generation": 2, "decoding": 2}
