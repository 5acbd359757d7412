"""Layers of chapter 9 and tokens for them, small and the same on each call."""

import torch

from mha.alternatives import AttentionLayer, ConvolutionLayer, RecurrentLayer

WIDTH, SEQ = 12, 20
LAYERS = [ConvolutionLayer, RecurrentLayer, AttentionLayer]


def made(make, width=WIDTH, **options):
    torch.manual_seed(0)
    return make(width, **options)


def tokens(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or (2, SEQ, WIDTH), generator=generator)
