"""What only ChatGLM-6B has: prefix mask, 2-D and 1-D positions, a tied head, two vocabularies."""

import json

import pytest
import torch
from generations import FIRST_GENERATION, FIRST_GENERATION_KEYS
from safetensors.torch import load_file, save_file
from transformers import AutoModel, StaticCache

from glmforge.errors import ModelError
from glmforge.models import load_config, load_model
from glmforge.models.chatglm.positions import find_prefix, prefix_positions, prefix_visibility
from glmforge.models.configuration import ChatGLMConfig
from glmforge.models.head import CACHE_FIELD

MASK, GMASK, SOP, EOP, PAD = 500, 501, 504, 505, 3
TOLERANCE = 2e-5


@pytest.fixture(params=list(FIRST_GENERATION))
def model(request, tiny_model):
    return tiny_model(request.param)


def row(context: list[int], answer: list[int]) -> torch.Tensor:
    return torch.tensor([[*context, GMASK, SOP, *answer]])


def logits_of(model, ids, **inputs):
    with torch.no_grad():
        return model(ids, **inputs).logits


def prefix_of(ids, **changes):
    config = ChatGLMConfig.from_dict({**FIRST_GENERATION_KEYS, **changes})
    mask = (ids != PAD).long()
    return find_prefix(ids, config, mask), config


def test_two_rows_of_positions_count_the_context_and_then_the_answer():
    prefix, config = prefix_of(torch.tensor([[PAD, PAD, 10, 11, GMASK, SOP, 12, 13]]))
    expected = [[[0, 0, 0, 1, 2, 2, 2, 2], [0, 0, 0, 0, 0, 1, 2, 3]]]
    assert prefix_positions(prefix, 8, config).tolist() == expected


def test_one_row_of_positions_stops_at_a_blank_and_goes_on_after_a_gmask():
    for token, expected in ((MASK, [0, 1, 2, 3, 1, 1, 1]), (GMASK, [0, 1, 2, 3, 4, 5, 6])):
        ids = torch.tensor([[10, token, 11, 12, SOP, 13, 14]])
        prefix, config = prefix_of(ids, position_encoding_2d=False)
        assert prefix_positions(prefix, 7, config).tolist() == [expected]


def test_the_context_is_seen_by_all_and_the_answer_is_causal():
    prefix, _ = prefix_of(torch.tensor([[PAD, 10, GMASK, SOP, 11]]))
    seen = prefix_visibility(prefix, 5)[0, 0].int().tolist()
    assert seen == [
        [1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 1, 1, 1, 0],
        [0, 1, 1, 1, 1],
    ]


def test_a_row_without_sop_or_mask_token_is_named():
    ids = torch.tensor([[10, GMASK, SOP], [10, 11, 12], [10, 11, SOP], [PAD, PAD, PAD]])
    with pytest.raises(ModelError, match="rows 1, 2 "):
        prefix_of(ids)


def test_a_row_of_padding_alone_has_finite_logits(model):
    ids = torch.cat((row([10, 11], [12]), torch.full((1, 5), PAD)))
    assert logits_of(model, ids, attention_mask=(ids != PAD).long()).isfinite().all()


def test_padding_on_either_side_changes_nothing(model):
    ids = row([10, 11, 12], [20, 21, EOP])
    pads = torch.full((1, 4), PAD)
    alone = logits_of(model, ids)
    left = torch.cat((pads, ids), dim=1)
    right = torch.cat((ids, pads), dim=1)
    shifted = logits_of(model, left, attention_mask=(left != PAD).long())[:, 4:]
    assert (shifted - alone).abs().max() <= TOLERANCE
    for inputs in ({}, {"attention_mask": (right != PAD).long()}):
        assert (logits_of(model, right, **inputs)[:, :8] - alone).abs().max() <= TOLERANCE


def test_cached_steps_equal_one_forward(model):
    ids = row([10, 11, 12], [20, 21, 22, 23])
    whole = logits_of(model, ids)
    prefix = find_prefix(ids, model.config)
    positions = prefix_positions(prefix, ids.shape[1], model.config)
    cache, parts = None, []
    for start, end in ((0, 5), (5, 6), (6, 9)):
        with torch.no_grad():
            output = model(
                ids[:, start:end],
                position_ids=positions[..., start:end],
                use_cache=True,
                **{CACHE_FIELD: cache},
            )
        cache = output[CACHE_FIELD]
        parts.append(output.logits)
    assert (torch.cat(parts, dim=1) - whole).abs().max() <= TOLERANCE


def test_a_filled_cache_needs_positions(model):
    with torch.no_grad():
        cache = model(row([10], []), use_cache=True)[CACHE_FIELD]
    with pytest.raises(ModelError, match="position_ids"):
        model(torch.tensor([[20]]), use_cache=True, **{CACHE_FIELD: cache})


@pytest.mark.parametrize("beams", [1, 3])
def test_a_left_padded_batch_generates_what_each_row_does_alone(model, beams):
    rows = [row([10, 11, 12, 13], []), row([20], [])]
    options = {
        "max_new_tokens": 6,
        "do_sample": False,
        "num_beams": beams,
        "eos_token_id": None,
        "pad_token_id": PAD,
    }
    batch = torch.cat((rows[0], torch.cat((torch.full((1, 3), PAD), rows[1]), dim=1)))
    mask = (batch != PAD).long()
    together = model.generate(batch, attention_mask=mask, **options)[:, 6:]
    for index, ids in enumerate(rows):
        alone = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        assert alone[0, ids.shape[1] :].tolist() == together[index].tolist()


def test_generation_takes_the_tokenizers_mask_and_positions(golden):
    reference = golden("chatglm-6b")
    model = load_model(reference.directory)
    case = reference.cases["left_pad_batch"]
    options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    theirs = {key: case[key] for key in ("input_ids", "attention_mask", "position_ids")}
    mask = (case["input_ids"] != PAD).long()
    expected = model.generate(case["input_ids"], attention_mask=mask, **options)
    assert torch.equal(model.generate(**theirs, **options), expected)


def test_masks_and_positions_from_the_ids_equal_the_tokenizers(golden):
    reference = golden("chatglm-6b")
    model = load_model(reference.directory)
    case = reference.cases["left_pad_batch"]
    ids = case["input_ids"]
    difference = logits_of(model, ids, attention_mask=(ids != PAD).long()) - case["logits"]
    assert difference[ids != PAD].abs().max() <= 1e-5


def test_chunked_loss_equals_the_mean_and_its_gradients(model):
    ids = torch.cat((row([10, 11], [20, 21, EOP]), row([12, 13], [22, EOP, PAD])))
    labels = torch.tensor([[-100] * 4 + [20, 21, EOP], [-100] * 4 + [22, EOP, -100]])
    plain = model(ids, labels=labels).loss
    plain.backward()
    expected = [value.grad.clone() for value in model.parameters()]
    model.zero_grad()
    ours = model(ids, labels=labels, num_items_in_batch=5).loss
    ours.backward()
    assert ours.item() == pytest.approx(plain.item(), rel=1e-6)
    for before, value in zip(expected, model.parameters()):
        assert (value.grad - before).norm() <= 2e-6 * before.norm()


def test_recomputing_layers_in_backward_changes_no_gradient(model):
    from glmforge.models.layers import checkpoint_layers

    ids = row([10, 11], [20, 21, EOP])
    model.train()
    gradients = []
    for recompute in (False, True):
        if recompute:
            checkpoint_layers(model)
        model.zero_grad()
        model(ids, labels=ids, num_items_in_batch=6).loss.backward()
        gradients.append([value.grad.clone() for value in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients))


# Dynamo itself looks at the .grad of a layer's input, which is no leaf.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_compiled_layers_give_the_plain_layers_gradients(model):
    from glmforge.models.layers import decoder_layers

    ids = row([10, 11], [20, 21, EOP])
    model(ids, labels=ids, num_items_in_batch=6).loss.backward()
    plain = [value.grad.clone() for value in model.parameters()]
    model.zero_grad()
    for layer in decoder_layers(model):
        layer.compile(backend="eager", fullgraph=True)
    model(ids, labels=ids, num_items_in_batch=6).loss.backward()
    for before, value in zip(plain, model.parameters()):
        assert (before - value.grad).norm() <= 1e-6 * before.norm()


def test_packed_rows_are_refused(model):
    with pytest.raises(ModelError, match="packing"):
        model(row([10], [11]), cu_seq_lens_q=torch.tensor([0, 4]))


def test_saving_and_opening_again_changes_nothing(model, saved):
    again = saved(model)
    ids = row([10, 11], [20, 21])
    assert torch.equal(logits_of(model, ids), logits_of(again, ids))
    assert model.config.to_diff_dict() == again.config.to_diff_dict()


@pytest.mark.parametrize("opener", ["load_model", "AutoModel"])
def test_the_head_is_tied_even_where_the_file_holds_another(tiny_model, tmp_path, opener):
    """As the original ends up, although its checkpoint has lm_head.weight."""
    model = tiny_model("chatglm")
    model.save_pretrained(tmp_path / "published")
    path = tmp_path / "published" / "model.safetensors"
    tensors = load_file(path)
    tensors["lm_head.weight"] = torch.randn(512, 64)
    save_file(tensors, path, metadata={"format": "pt"})
    again = (load_model if opener == "load_model" else AutoModel.from_pretrained)(path.parent)
    assert again.lm_head.weight is again.transformer.word_embeddings.weight
    ids = row([10, 11], [20])
    assert torch.equal(logits_of(model, ids), logits_of(again, ids))


def test_both_published_vocabularies_are_recognised(tmp_path):
    old = {**FIRST_GENERATION_KEYS, "vocab_size": 150528, "bos_token_id": 150004}
    old |= {"eos_token_id": 150005}
    for key in ("mask_token_id", "gmask_token_id", "pad_token_id"):
        old.pop(key)
    (tmp_path / "config.json").write_text(json.dumps(old), encoding="utf-8")
    config = load_config(tmp_path)
    assert config.has_old_vocabulary
    assert (config.mask_token_id, config.gmask_token_id) == (150000, 150001)
    assert config.pad_token_id == 20003
    new = ChatGLMConfig.from_dict({**FIRST_GENERATION_KEYS, "bos_token_id": 130004})
    assert not new.has_old_vocabulary


@pytest.mark.parametrize("how", ["option", "configured", "passed"])
def test_a_static_cache_is_refused_by_name(tiny_model, how):
    """transformers' mask for it is the other way round, and its keys are padded to the end."""
    model = tiny_model("chatglm")
    ids = torch.tensor([[9, 8, 7, 501, 504]])
    options = {"max_new_tokens": 4, "do_sample": False}
    if how == "option":
        options["cache_implementation"] = "static"
    elif how == "configured":
        model.generation_config.cache_implementation = "static"
    else:
        options[CACHE_FIELD] = StaticCache(config=model.config, max_cache_len=16)
    with pytest.raises(ModelError, match="ChatGLM-6B does not generate with a StaticCache"):
        model.generate(ids, **options)


@pytest.mark.parametrize("option", [{"prefill_chunk_size": 2}, {"guidance_scale": 1.5}])
def test_generation_that_splits_a_row_is_refused_by_name(model, option):
    with pytest.raises(ModelError, match=f"does not generate with {next(iter(option))}"):
        model.generate(row([5, 6, 7], []), max_new_tokens=2, **option)


def test_a_mask_of_another_length_than_the_rows_is_refused(model):
    ids = row([5, 6, 7], [8])
    for length in (ids.shape[1] - 1, ids.shape[1] + 1):
        mask = torch.ones(1, length, dtype=torch.long)
        with pytest.raises(ModelError, match=f"attention_mask is of {length} tokens"):
            model(ids, attention_mask=mask)
        with pytest.raises(ModelError, match=f"attention_mask is of {length} tokens"):
            model.generate(ids, attention_mask=mask, max_new_tokens=2)
