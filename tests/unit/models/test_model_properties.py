"""Promises that hold for our decoder and for transformers' own Glm classes, any weights."""

import pytest
import torch
from generations import GENERATIONS, TRANSFORMERS_OWN

from glmforge.errors import ModelError
from glmforge.models import load_model
from glmforge.models.head import CACHE_FIELD

TOLERANCE = 2e-5  # fp32, logits of size ~10: summation order only


@pytest.fixture(params=[*GENERATIONS, *TRANSFORMERS_OWN])
def model(request, tiny_model):
    return tiny_model(request.param)


def ids_of(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, 500, (1, length), generator=torch.Generator().manual_seed(seed))


def logits_of(model, ids, **inputs):
    with torch.no_grad():
        return model(ids, **inputs).logits


def test_left_padding_changes_nothing(model):
    ids = ids_of(9)
    padded = torch.cat((torch.zeros(1, 5, dtype=torch.long), ids), dim=1)
    mask = torch.cat((torch.zeros(1, 5), torch.ones(1, 9)), dim=1).long()
    difference = logits_of(model, padded, attention_mask=mask)[:, 5:] - logits_of(model, ids)
    assert difference.abs().max() <= TOLERANCE


def test_right_padding_changes_nothing_with_and_without_a_mask(model):
    ids = ids_of(9)
    padded = torch.cat((ids, torch.zeros(1, 5, dtype=torch.long)), dim=1)
    mask = torch.cat((torch.ones(1, 9), torch.zeros(1, 5)), dim=1).long()
    for inputs in ({}, {"attention_mask": mask}):
        difference = logits_of(model, padded, **inputs)[:, :9] - logits_of(model, ids)
        assert difference.abs().max() <= TOLERANCE


def test_a_batch_gives_each_row_what_it_gives_alone(model):
    rows = [ids_of(8, seed) for seed in (1, 2, 3)]
    batch = logits_of(model, torch.cat(rows))
    for index, row in enumerate(rows):
        assert (batch[index] - logits_of(model, row)[0]).abs().max() <= TOLERANCE


def test_cached_steps_equal_one_forward(model):
    ids = ids_of(12)
    whole = logits_of(model, ids)
    cache, parts = None, []
    for start, end in ((0, 5), (5, 6), (6, 10), (10, 12)):
        with torch.no_grad():
            output = model(ids[:, start:end], use_cache=True, **{CACHE_FIELD: cache})
        cache = output[CACHE_FIELD]
        parts.append(output.logits)
    assert (torch.cat(parts, dim=1) - whole).abs().max() <= TOLERANCE


def test_generation_from_a_left_padded_batch_equals_each_row_alone(model):
    short, long = ids_of(5, 1), ids_of(9, 2)
    batch = torch.cat((torch.cat((torch.zeros(1, 4, dtype=torch.long), short), dim=1), long))
    mask = (torch.arange(9) >= torch.tensor([[4], [0]])).long()
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    together = model.generate(batch, attention_mask=mask, **options)[:, 9:]
    for row, alone in enumerate((short, long)):
        expected = model.generate(alone, attention_mask=torch.ones_like(alone), **options)
        assert expected[0, alone.shape[1] :].tolist() == together[row].tolist()


def test_beam_search_scores_at_least_as_well_as_greedy(model):
    ids = ids_of(6)
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}

    def score(sequence):
        logits = logits_of(model, sequence)[:, 5:-1].log_softmax(-1)
        return logits.gather(2, sequence[:, 6:, None]).sum().item()

    greedy = model.generate(ids, **options)
    beams = model.generate(ids, num_beams=4, **options)
    assert score(beams) >= score(greedy) - 1e-4


def packed_inputs(lengths: list[int], rows: int) -> dict[str, object]:
    """Documents of these lengths, one after another, over equal rows."""
    total = sum(lengths)
    positions = torch.cat([torch.arange(length) for length in lengths])
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    return {
        "input_ids": ids_of(total, 4).view(rows, -1),
        "position_ids": positions.view(rows, -1),
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }


def test_a_packed_row_gives_each_document_what_it_gives_alone(model):
    lengths = [7, 3, 6, 1, 11, 4]
    inputs = packed_inputs(lengths, rows=2)
    with torch.no_grad():
        packed = model(**inputs).logits.flatten(0, 1)
    ids = inputs["input_ids"].flatten()
    start = 0
    for length in lengths:
        alone = logits_of(model, ids[None, start : start + length])[0]
        assert (packed[start : start + length] - alone).abs().max() <= TOLERANCE
        start += length


def test_packed_rows_train_as_their_documents_do(model):
    lengths = [7, 3, 6, 1, 11, 4]
    inputs = packed_inputs(lengths, rows=2)
    labels = inputs["input_ids"].clone()
    labels[:, ::3] = -100
    model(**inputs, labels=labels, num_items_in_batch=10).loss.backward()
    packed = {name: value.grad.clone() for name, value in model.named_parameters()}
    model.zero_grad()
    ids, flat, start = inputs["input_ids"].flatten(), labels.flatten(), 0
    for length in lengths:
        part = slice(start, start + length)
        loss = model(ids[None, part], labels=flat[None, part], num_items_in_batch=10).loss
        loss.backward()
        start += length
    for name, value in model.named_parameters():
        assert (value.grad - packed[name]).norm() <= 2e-6 * max(1.0, packed[name].norm()), name


def test_packed_rows_refuse_a_mask(model):
    inputs = packed_inputs([4, 4], rows=1)
    with pytest.raises(ModelError, match="neither attention_mask"):
        model(**inputs, attention_mask=torch.ones(1, 8))


def test_packed_rows_refuse_a_kernel_that_cannot_bound_documents(tiny_model):
    model = tiny_model("glm")
    model.set_attn_implementation("eager")
    with pytest.raises(ModelError, match="eager"):
        model(**packed_inputs([4, 4], rows=1))


def test_saving_and_opening_again_changes_nothing(model, saved):
    again = saved(model)
    ids = ids_of(9)
    assert torch.equal(logits_of(model, ids), logits_of(again, ids))
    assert model.config.to_diff_dict() == again.config.to_diff_dict()
    assert set(model.state_dict()) == set(again.state_dict())


def test_hidden_states_are_the_input_of_each_layer_and_the_normed_output(model):
    ids = ids_of(9)
    with torch.no_grad():
        output = model(ids, output_hidden_states=True)
    assert len(output.hidden_states) == model.config.num_hidden_layers + 1
    logits = model.get_output_embeddings()(output.hidden_states[-1])
    assert torch.equal(logits, output.logits)


def test_generation_returns_hidden_states_and_scores_where_asked(model):
    output = model.generate(
        ids_of(6),
        max_new_tokens=3,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_hidden_states=True,
        output_scores=True,
    )
    assert len(output.scores) == 3
    assert [states[-1].shape[1] for states in output.hidden_states] == [6, 1, 1]


def test_more_vocabulary_rows_keep_the_old_logits_and_the_chunked_loss(model):
    ids = ids_of(9)
    before = logits_of(model, ids)
    model.resize_token_embeddings(520, mean_resizing=False)
    assert model.config.vocab_size == 520
    assert (logits_of(model, ids)[..., :512] - before).abs().max() <= TOLERANCE
    mean = model(ids, labels=ids).loss
    summed = model(ids, labels=ids, num_items_in_batch=8).loss
    assert summed.item() == pytest.approx(mean.item(), rel=1e-6)


def test_recomputing_layers_in_backward_changes_no_gradient(model):
    from glmforge.models.layers import checkpoint_layers

    ids = ids_of(9)
    model.train()
    gradients = []
    for recompute in (False, True):
        if recompute:
            checkpoint_layers(model)
        model.zero_grad()
        model(ids, labels=ids, num_items_in_batch=8).loss.backward()
        gradients.append([value.grad.clone() for value in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients))


def test_eager_attention_is_the_oracle_of_the_fused_one(model):
    ids = ids_of(20)
    fused = logits_of(model, ids)
    model.set_attn_implementation("eager")
    assert (fused - logits_of(model, ids)).abs().max() <= TOLERANCE


def test_only_the_kept_positions_get_logits(model):
    ids = ids_of(9)
    whole = logits_of(model, ids)
    kept = logits_of(model, ids, logits_to_keep=2)
    assert kept.shape == (1, 2, 512)
    assert (whole[:, -2:] - kept).abs().max() <= TOLERANCE


# Dynamo itself looks at the .grad of a layer's input, which is no leaf.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_compiled_layers_give_the_plain_layers_gradients(model):
    """The graph capture is tested here; the kernels it makes are a GPU test."""
    from glmforge.models.layers import decoder_layers

    ids = ids_of(9)
    model(ids, labels=ids, num_items_in_batch=8).loss.backward()
    plain = [value.grad.clone() for value in model.parameters()]
    model.zero_grad()
    for layer in decoder_layers(model):
        layer.compile(backend="eager", fullgraph=True)
    model(ids, labels=ids, num_items_in_batch=8).loss.backward()
    for before, value in zip(plain, model.parameters()):
        assert (before - value.grad).norm() <= 1e-6 * before.norm()


# PEFT 0.21 still reads the name that transformers 5.24 deprecates.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("method", [{}, {"use_dora": True}, {"use_rslora": True}])
def test_adapters_have_the_names_that_remote_code_gives_them_and_load_again(
    tiny_model, tmp_path, method
):
    peft = pytest.importorskip("peft")
    base = tiny_model("chatglm3")
    base.save_pretrained(tmp_path / "base")
    targets = ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]
    config = peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False, **method)
    model = peft.get_peft_model(base, config).eval()
    names = set(peft.get_peft_model_state_dict(model))
    prefix = "base_model.model.transformer.encoder.layers.1"
    assert f"{prefix}.self_attention.query_key_value.lora_A.weight" in names
    assert f"{prefix}.mlp.dense_4h_to_h.lora_B.weight" in names
    model.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(load_model(tmp_path / "base"), tmp_path / "adapter")
    ids = ids_of(9)
    expected = logits_of(model, ids)
    assert torch.equal(expected, logits_of(again.eval(), ids))
    merged = again.merge_and_unload()
    assert (expected - logits_of(merged, ids)).abs().max() <= TOLERANCE
