"""Decoder layers are found in every family, and trained or recomputed as asked."""

import pytest

from glmforge.models.layers import decoder_layers, train_last_layers

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
