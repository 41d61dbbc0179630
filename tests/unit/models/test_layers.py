"""Decoder layers are found in every family, and trained or recomputed as asked."""

import math

import pytest
import torch

from glmforge.models.layers import (
    add_embedding_noise,
    checkpoint_layers,
    decoder_layers,
    train_last_layers,
)

FAMILIES = ["chatglm", "chatglm3", "glm4-9b", "glm", "glm4"]


@pytest.mark.parametrize("generation", FAMILIES)
def test_only_the_last_layers_and_the_norm_after_them_are_trained(tiny_model, generation):
    """No embedding, no head, no earlier layer, in any layout."""
    model = tiny_model(generation)
    layers = decoder_layers(model)
    train_last_layers(model, 1)
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    last = {id(p) for p in layers[-1].parameters()}
    assert last < trained
    names = [n for n, p in model.named_parameters() if id(p) in trained - last]
    assert names
    assert all("norm" in name or "ln" in name for name in names), names
    held = [*layers[:-1], model.get_input_embeddings(), model.get_output_embeddings()]
    assert not any(p.requires_grad for module in held for p in module.parameters())


@pytest.mark.parametrize("generation", FAMILIES)
def test_every_second_layer_is_computed_again_and_no_gradient_changes(tiny_model, generation):
    """The first, the third, ... run twice a step; the others once."""
    model = tiny_model(generation, **({"num_layers": 3} if generation[:3] != "glm" else {}))
    layers = decoder_layers(model)
    ids = torch.arange(10, 22)[None]
    if generation == "chatglm":
        ids[0, 5:7] = torch.tensor([model.config.gmask_token_id, model.config.bos_token_id])
    calls = [0] * len(layers)

    def count(number):
        def hook(*_):
            calls[number] += 1

        return hook

    for number, layer in enumerate(layers):
        next(layer.children()).register_forward_hook(count(number))
    found = []
    for every in (None, 2):
        if every is not None:
            checkpoint_layers(model.train(), every=every)
        calls[:] = [0] * len(layers)
        model.zero_grad()
        model(ids, labels=ids, num_items_in_batch=11).loss.backward()
        found.append([p.grad.clone() for p in model.parameters()])
    assert calls == [2 if number % 2 == 0 else 1 for number in range(len(layers))]
    assert all(torch.equal(a, b) for a, b in zip(*found))


def test_noise_has_the_size_of_each_document(tiny_model):
    """alpha / sqrt(tokens x width), uniform: documents of 4 and 12 tokens, padding of 8."""
    model = tiny_model("chatglm3").train()
    add_embedding_noise(model, 5.0)
    seen = []
    model.get_input_embeddings().register_forward_hook(lambda *call: seen.append(call[2].detach()))
    ids = torch.arange(24)[None] + 5
    positions = torch.cat([torch.arange(n) for n in (4, 12, 8)])[None]
    bounds = torch.tensor([0, 4, 16, 24], dtype=torch.int32)
    torch.manual_seed(0)
    model(
        ids,
        position_ids=positions,
        cu_seq_lens_q=bounds,
        cu_seq_lens_k=bounds,
        max_length_q=12,
        max_length_k=12,
    )
    noise = (seen[0] - model.get_input_embeddings().weight.detach()[ids])[0]
    for start, end in ((0, 4), (4, 16), (16, 24)):
        size = 5.0 / math.sqrt((end - start) * noise.shape[1])
        part = noise[start:end]
        assert part.abs().max() <= size * (1 + 1e-5)
        assert part.abs().max() > 0.95 * size
        assert abs(part.mean()) < 0.15 * size


def test_there_is_no_noise_in_evaluation(tiny_model):
    """Bit for bit the model without it."""
    model = tiny_model("chatglm3")
    ids = torch.arange(10, 30)[None]
    expected = model(ids).logits
    add_embedding_noise(model, 5.0)
    assert torch.equal(model(ids).logits, expected)
    assert not torch.equal(model.train()(ids).logits, expected)
