"""Augmentation of images, for ``task.augment``: small random changes that leave the class what it is."""

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

TURN = math.radians(8)
"""The most a picture is turned, either way."""
STRETCH, SHEAR, SHIFT = 0.08, 0.1, 0.08
"""The most it is stretched along either axis, sheared, and moved (a share of half its side)."""


def weak_affine(images: Tensor, generator: torch.Generator) -> Tensor:
    """Turn, stretch, shear and move about half of the images of (batch, channels, height, width), each in its own way.

    Pixels between others are interpolated, which blurs: so the other images stay as they are. What comes in at an edge
    has that edge's colour.
    """
    draws = torch.rand(7, len(images), device=images.device, generator=generator) * 2 - 1
    angle, shear = TURN * draws[0], SHEAR * draws[1]
    wide, high = 1 + STRETCH * draws[2], 1 + STRETCH * draws[3]
    cos, sin = torch.cos(angle), torch.sin(angle)
    rows = (
        torch.stack([cos * wide, shear - sin, SHIFT * draws[4]], dim=1),
        torch.stack([sin, cos * high, SHIFT * draws[5]], dim=1),
    )
    grid = affine_grid(torch.stack(rows, dim=1).to(images.dtype), list(images.shape), align_corners=False)
    changed = grid_sample(images, grid, padding_mode="border", align_corners=False)
    return torch.where((draws[6] > 0)[:, None, None, None], changed, images)
