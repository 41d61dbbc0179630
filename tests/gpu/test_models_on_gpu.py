"""What only a CUDA device can show of the models: kernels, compiled layers, loading onto it.

Run: ``pytest -m gpu tests/gpu/test_models_on_gpu.py`` (one device, a few minutes, most of it
compilation). Half precision is judged against an fp32 copy: a fast path may be no farther from it
than the plain path is. Nothing may be left compiled from one test to the next, or torch's limit of
recompilations would turn the later ones into comparisons of the plain path with itself.
"""

import copy
import json

import pytest
import torch
from torch.nn import functional

from glmforge.models import load_config, load_model, new_model
from glmforge.models.attention import attend, plan_prefix_rows, plan_rows
from glmforge.models.chatglm.positions import PrefixRows, prefix_visibility
from glmforge.models.head import LanguageHead
from glmforge.models.layers import checkpoint_layers, compile_layers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]
SLACK = 1.05  # two roundings of the same size never agree exactly

DECODER = {
    "model_type": "chatglm",
    "_name_or_path": "THUDM/chatglm3-6b",
    "ffn_hidden_size": 704,
    "hidden_size": 512,
    "kv_channels": 64,
    "multi_query_group_num": 2,
    "num_attention_heads": 8,
    "num_layers": 2,
    "padded_vocab_size": 1024,
    "seq_length": 4096,
    "torch_dtype": "bfloat16",
}
FIRST = {
    "model_type": "chatglm",
    "_name_or_path": "THUDM/chatglm-6b",
    "hidden_size": 512,
    "inner_hidden_size": 1024,
    "num_attention_heads": 8,
    "num_layers": 2,
    "max_sequence_length": 2048,
    "vocab_size": 1024,
    "bos_token_id": 1004,
    "eos_token_id": 1005,
    "mask_token_id": 1000,
    "gmask_token_id": 1001,
    "torch_dtype": "bfloat16",
}
SPLIT = {
    "model_type": "glm4",
    "attention_bias": True,
    "head_dim": 64,
    "hidden_size": 512,
    "intermediate_size": 704,
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "vocab_size": 1024,
    "dtype": "bfloat16",
}


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch.compiler.reset()


def relative(ours, reference):
    ours, reference = ours.double(), reference.double()
    return ((ours - reference).norm() / reference.norm()).item()


def in_half(model):
    """A bfloat16 copy made as loading makes one: rotary buffers stay in fp32."""
    half = new_model(model.config, torch.bfloat16).to("cuda").train(model.training)
    half.load_state_dict(model.state_dict())
    return half


def told(model, found, reference, **distances):
    """What to know when a bound is missed: every distance, the worst parameters, the switches."""
    lines = [f"{name}: {value:.4e}" for name, value in distances.items()]
    worst, start = [], 0
    for name, parameter in model.named_parameters():
        part = slice(start, start := start + parameter.numel())
        worst.append((relative(found[part], reference[part]), name))
    lines += [f"  {value:.3e} {name}" for value, name in sorted(worst, reverse=True)[:6]]
    lines.append(
        f"TF32 {torch.backends.cuda.matmul.allow_tf32}, precision "
        f"{torch.get_float32_matmul_precision()}, bf16 reductions "
        f"{torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction}, torch "
        f"{torch.__version__}, {torch.cuda.get_device_name()}"
    )
    return "\n".join(lines)


def build(tmp_path, keys, dtype):
    (tmp_path / "config.json").write_text(json.dumps(keys), encoding="utf-8")
    torch.manual_seed(0)
    return new_model(load_config(tmp_path)).to("cuda", dtype)


def packed_batch():
    lengths = [700, 300, 48, 900, 100]
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device="cuda")
    positions = torch.cat([torch.arange(n) for n in lengths]).view(2, -1).cuda()
    ids = torch.randint(3, 990, (2, 1024), generator=torch.Generator().manual_seed(1)).cuda()
    inputs = {
        "input_ids": ids,
        "position_ids": positions,
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": 900,
        "max_length_k": 900,
    }
    return inputs, lengths


def gradients(model, **inputs):
    model.zero_grad()
    model(**inputs, labels=inputs["input_ids"], num_items_in_batch=2000).loss.backward()
    return [value.grad.clone() for value in model.parameters()]


def whole(parts):
    return torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize("keys", [DECODER, SPLIT], ids=["chatglm3", "glm4"])
def test_packed_rows_give_each_document_what_it_gives_alone(tmp_path, keys):
    exact = build(tmp_path, keys, torch.float32).eval()
    half = in_half(exact)
    inputs, lengths = packed_batch()
    with torch.no_grad():
        packed = half(**inputs).logits.flatten(0, 1)
        start = 0
        for length in lengths:
            ids = inputs["input_ids"].flatten()[None, start : start + length]
            reference, alone = exact(ids).logits[0], half(ids).logits[0]
            ours = packed[start : start + length]
            distances = relative(ours, reference), relative(alone, reference)
            assert distances[0] <= SLACK * distances[1], (length, distances)
            start += length


@pytest.mark.parametrize("keys", [DECODER, SPLIT], ids=["chatglm3", "glm4"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_compiled_layers_train_as_the_plain_ones(tmp_path, keys, recompute, packed):
    """In bfloat16 no farther from the fp32 gradients; packed or not, recomputed or not."""
    inputs = packed_batch()[0] if packed else {"input_ids": packed_batch()[0]["input_ids"]}
    exact = build(tmp_path, keys, torch.float32).train()
    reference = whole(gradients(exact, **inputs))
    half = in_half(exact)
    plain = whole(gradients(half, **inputs))
    if recompute:
        checkpoint_layers(half)
    compile_layers(half)
    compiled = whole(gradients(half, **inputs))
    distances = {
        "compiled": relative(compiled, reference),
        "plain": relative(plain, reference),
        "compiled from plain": relative(compiled, plain),
    }
    assert distances["compiled"] <= SLACK * distances["plain"], told(
        half, compiled, reference, **distances
    )


@pytest.mark.parametrize("keys", [DECODER, SPLIT], ids=["chatglm3", "glm4"])
@pytest.mark.parametrize("recompute", [False, True])
def test_compiled_layers_have_the_plain_gradients_in_fp32(tmp_path, keys, recompute):
    """To 1e-6, or to what two evaluations in fp32 can agree at all.

    A plain fp32 gradient is itself some 7e-7 from one in double precision (on a CPU: 6.7e-7 for
    chatglm3, 8.0e-7 for glm4, whose norms behind each block enlarge it). Two evaluations that sum
    in another order, each no farther than that from the exact one, may differ by the sum of both.
    """
    inputs = {"input_ids": packed_batch()[0]["input_ids"]}
    model = build(tmp_path, keys, torch.float32).train()
    plain = whole(gradients(model, **inputs))
    exact = whole(gradients(copy.deepcopy(model).double(), **inputs))
    if recompute:
        checkpoint_layers(model)
    compile_layers(model)
    compiled = whole(gradients(model, **inputs))
    distances = {
        "compiled from plain": relative(compiled, plain),
        "compiled": relative(compiled, exact),
        "plain": relative(plain, exact),
    }
    message = told(model, compiled, exact, **distances)
    assert distances["plain"] <= 5e-6, message  # else fp32 is none (TF32), and the bound is void
    assert distances["compiled from plain"] <= max(1e-6, 2 * distances["plain"]), message


def test_row_lengths_may_vary_after_compilation(tmp_path):
    model = build(tmp_path, DECODER, torch.bfloat16).train()
    plain = copy.deepcopy(model)
    compile_layers(model)
    for length in (256, 300, 517, 64):
        ids = torch.randint(3, 990, (2, length), device="cuda")
        losses = [m(ids, labels=ids, num_items_in_batch=2 * length).loss for m in (model, plain)]
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-2)


def test_prefix_rows_by_the_kernel_equal_the_masked_ones():
    torch.manual_seed(0)
    context, padding = torch.tensor([300, 500, 40]), torch.tensor([0, 70, 0])
    q, k, v = (torch.randn(3, 8, 512, 64, device="cuda") for _ in range(3))
    prefix = PrefixRows(context=context, mask_place=context, padding=padding, whole=context > 0)
    mask = prefix_visibility(prefix, 512).cuda()
    options = {"num_query_tokens": 512, "device": q.device}
    exact = attend(q, k, v, plan_rows(attention_mask=mask, dtype=q.dtype, **options))
    q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
    masked = attend(q, k, v, plan_rows(attention_mask=mask, dtype=q.dtype, **options))
    ours = attend(q, k, v, plan_prefix_rows(context.cuda(), padding.cuda(), 512))
    kept = torch.arange(512) >= padding[:, None]
    distance = relative(masked[kept], exact[kept])
    assert relative(ours[kept], exact[kept]) <= 1.2 * distance  # other kernel, other blocks


@pytest.mark.parametrize("compiled", [False, True])
def test_chatglm_6b_trains_without_a_mask(tmp_path, compiled):
    exact = build(tmp_path, FIRST, torch.float32).train()
    half = in_half(exact)
    ids = torch.randint(3, 990, (2, 256), generator=torch.Generator().manual_seed(1)).cuda()
    ids[0, 100:102] = ids[1, 30:32] = torch.tensor([1001, 1004])
    if compiled:
        compile_layers(half)
    ours, reference = whole(gradients(half, input_ids=ids)), whole(gradients(exact, input_ids=ids))
    half.set_attn_implementation("eager")
    plain = whole(gradients(half, input_ids=ids))
    distances = {"ours": relative(ours, reference), "plain": relative(plain, reference)}
    assert distances["ours"] <= SLACK * distances["plain"], told(half, ours, reference, **distances)


def test_the_chunked_head_is_no_farther_from_exact_than_the_plain_one():
    """Both round the same inputs and logits; the sums over chunks and vocabulary are kept wide."""
    torch.manual_seed(0)
    weight, states = torch.randn(5003, 256) * 0.1, torch.randn(3000, 256)
    labels = torch.randint(0, 5003, (3000,), device="cuda")
    found = {}
    for kind in ("exact", "plain", "chunked"):
        head = LanguageHead(256, 5003)
        head.weight.data = weight.clone()
        dtype = torch.float32 if kind == "exact" else torch.bfloat16
        head, hidden = head.to("cuda", dtype), states.to("cuda", dtype).requires_grad_()
        if kind == "chunked":
            loss = head(hidden, labels, divisor=3000, chunk=512)
        else:
            loss = functional.cross_entropy(head(hidden).float(), labels)
        found[kind] = torch.autograd.grad(loss, (hidden, head.weight))
    for name, exact, plain, chunked in zip(("hidden", "weight"), *found.values(), strict=True):
        distances = {"chunked": relative(chunked, exact), "plain": relative(plain, exact)}
        assert distances["chunked"] <= 1.01 * distances["plain"], (
            f"gradient of the {name}: {distances}, chunked from plain "
            f"{relative(chunked, plain):.3e}, bf16 reductions "
            f"{torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction}, TF32 "
            f"{torch.backends.cuda.matmul.allow_tf32}, torch {torch.__version__}"
        )


@pytest.mark.parametrize("keys", [DECODER, FIRST, SPLIT], ids=["chatglm3", "chatglm", "glm4"])
def test_a_model_is_loaded_onto_the_device_and_generates(tmp_path, keys):
    build(tmp_path, keys, torch.bfloat16).save_pretrained(tmp_path)
    model = load_model(tmp_path, device="cuda")
    assert model.device.type == "cuda"
    assert model.dtype == torch.bfloat16
    ids = torch.tensor([[5, 6, 1001, 1004]], device="cuda")
    out = model.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=3)
    assert out.shape == (1, 12)
