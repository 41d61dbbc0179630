"""Rotary positions of the ChatGLM line: interleaved pairs, angles and rotation in fp32.

Owns the frequencies and the rotation; the models decide which part of a head is rotated by which
positions. Frequencies are computed in each forward (a few dozen numbers) and are no buffer: a cast
of the model to half precision cannot round them, and meta-device construction cannot lose them.

Shapes: B batch, T tokens, N heads, H head width, P rotated pairs (rotated width / 2).
"""

import torch
from torch import Tensor


def rotary_frequencies(rotated_width: int, base: float, device: torch.device) -> Tensor:
    """Return the ``[P]`` fp32 frequencies base ** (-2 i / rotated_width) (Su et al., RoFormer)."""
    exponents = torch.arange(0, rotated_width, 2, device=device, dtype=torch.float32)
    return 1.0 / (base ** (exponents / rotated_width))


def rotary_angles(position_ids_BT: Tensor, frequencies_P: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine, each fp32 ``[B, 1, T, P]``, ready for `rotate_pairs`."""
    angles = position_ids_BT[:, None, :, None].float() * frequencies_P
    return angles.cos(), angles.sin()


def rotate_pairs(x_BNTH: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first 2P dimensions of each head, pairs (0,1), (2,3), …; pass on the rest."""
    width = 2 * cos.shape[-1]
    pairs = x_BNTH[..., :width].float().unflatten(-1, (-1, 2))
    even, odd = pairs[..., 0], pairs[..., 1]
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
    turned = turned.to(x_BNTH.dtype)
    if width == x_BNTH.shape[-1]:
        return turned
    return torch.cat((turned, x_BNTH[..., width:]), dim=-1)


def rotate_halves(x_BNTH: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate whole vectors whose pairs are (i, i + H / 2), as ChatGLM-6B does; P is H / 2."""
    first, second = x_BNTH.float().chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x_BNTH.dtype)
