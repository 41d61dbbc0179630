"""The chunked loss against plain cross entropy, and the head's promises to the trainer."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from glmforge.models.head import LanguageHead, mean_cross_entropy, next_token_targets

RELATIVE = 1e-6


def relative(ours: torch.Tensor, reference: torch.Tensor) -> float:
    return ((ours - reference).norm() / reference.norm().clamp(min=1e-12)).item()


@pytest.mark.parametrize("chunk", [1, 5, 64, None])
def test_loss_and_gradients_equal_plain_cross_entropy(chunk):
    torch.manual_seed(0)
    head = LanguageHead(32, 97)
    labels = torch.randint(0, 97, (23,))
    hidden = torch.randn(23, 32, requires_grad=True)
    plain = functional.cross_entropy(head(hidden), labels, reduction="sum") / 7
    expected = torch.autograd.grad(plain, (hidden, head.weight))
    ours = head(hidden, labels, divisor=7, chunk=chunk)
    gradients = torch.autograd.grad(ours, (hidden, head.weight))
    assert ours.item() == pytest.approx(plain.item(), rel=RELATIVE)
    assert all(relative(a, b) <= RELATIVE for a, b in zip(gradients, expected))


def test_a_frozen_head_gets_no_gradient_and_passes_on_the_hidden_one():
    torch.manual_seed(0)
    head = LanguageHead(32, 97).requires_grad_(False)
    labels = torch.randint(0, 97, (23,))
    hidden = torch.randn(23, 32, requires_grad=True)
    expected = torch.autograd.grad(
        functional.cross_entropy(head(hidden), labels, reduction="sum"), hidden
    )[0]
    head(hidden, labels, chunk=4).backward()
    assert head.weight.grad is None
    assert relative(hidden.grad, expected) <= RELATIVE


def test_no_trained_token_gives_an_exact_zero_with_a_graph():
    head = LanguageHead(32, 97)
    hidden = torch.randn(4, 32, requires_grad=True)
    total = head(hidden[:0], torch.empty(0, dtype=torch.long))
    assert total.item() == 0.0
    total.backward()
    assert torch.equal(hidden.grad, torch.zeros(4, 32))
    assert torch.equal(head.weight.grad, torch.zeros(97, 32))


def test_without_gradients_only_the_loss_is_computed():
    head = LanguageHead(32, 97)
    with torch.no_grad():
        total = head(torch.randn(4, 32), torch.randint(0, 97, (4,)))
    assert not total.requires_grad


def test_a_half_precision_head_gives_a_float32_loss_near_the_exact_one():
    torch.manual_seed(0)
    head = LanguageHead(64, 97)
    hidden, labels = torch.randn(50, 64), torch.randint(0, 97, (50,))
    exact = head(hidden, labels).item()
    head.to(torch.bfloat16)
    total = head(hidden.bfloat16(), labels, chunk=16)
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(exact, rel=2e-3)  # logits of bf16: 8 bits


def test_a_half_precision_gradient_is_no_farther_from_exact_than_the_plain_one():
    torch.manual_seed(0)
    weight, states = torch.randn(97, 64) * 0.3, torch.randn(300, 64)
    labels = torch.randint(0, 97, (300,))
    gradients = {}
    for kind in ("exact", "plain", "chunked"):
        head = LanguageHead(64, 97)
        head.weight.data = weight.clone()
        hidden = states.clone()
        if kind != "exact":
            head, hidden = head.bfloat16(), hidden.bfloat16()
        hidden.requires_grad_()
        if kind == "chunked":
            loss = head(hidden, labels, divisor=300, chunk=64)
        else:
            loss = functional.cross_entropy(head(hidden).float(), labels)
        gradients[kind] = torch.autograd.grad(loss, (hidden, head.weight))
    for exact, plain, chunked in zip(*gradients.values()):
        assert relative(chunked.float(), exact) <= 1.001 * relative(plain.float(), exact)


def test_a_head_may_take_over_the_weight_of_a_linear_layer():
    linear = nn.Linear(8, 11, bias=False)
    head = LanguageHead.taking_over(linear)
    assert head.weight is linear.weight
    assert (head.in_features, head.out_features) == (8, 11)


def test_targets_are_the_next_labels_and_never_the_first_token_of_a_document():
    labels = torch.tensor([[10, 11, 12, 13], [20, 21, 22, 23]])
    bounds = torch.tensor([0, 2, 4, 8])
    plain = [11, 12, 13, -100, 21, 22, 23, -100]
    assert next_token_targets(labels).tolist() == plain
    assert next_token_targets(labels, bounds).tolist() == [11, -100, 13, -100, 21, 22, 23, -100]


# PEFT 0.21 still reads the name that transformers 5.24 deprecates.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
class TestModelLoss:
    ids = torch.randint(3, 500, (3, 10), generator=torch.Generator().manual_seed(3))

    @pytest.fixture(params=[False, True], ids=["untied", "tied"])
    def model(self, request, tiny_model):
        return tiny_model("chatglm3", tie_word_embeddings=request.param)

    def labels(self) -> torch.Tensor:
        labels = self.ids.clone()
        labels[:, :4] = -100
        labels[2] = -100
        return labels

    def test_summed_loss_over_the_count_equals_the_mean_and_its_gradients(self, model):
        labels = self.labels()
        trained = int((labels[:, 1:] != -100).sum())
        plain = model(self.ids, labels=labels)
        assert plain.logits.shape == (3, 10, 512)
        plain.loss.backward()
        expected = {name: value.grad.clone() for name, value in model.named_parameters()}
        model.zero_grad()
        ours = model(self.ids, labels=labels, num_items_in_batch=trained)
        assert ours.logits is None
        assert ours.loss.item() == pytest.approx(plain.loss.item(), rel=RELATIVE)
        ours.loss.backward()
        for name, value in model.named_parameters():
            assert relative(value.grad, expected[name]) <= 2 * RELATIVE, name

    def test_a_batch_without_trained_tokens_gives_every_parameter_a_zero_gradient(self, model):
        labels = torch.full_like(self.ids, -100)
        loss = model(self.ids, labels=labels, num_items_in_batch=torch.tensor(5)).loss
        assert loss.item() == 0.0
        loss.backward()
        assert all(value.grad.abs().sum() == 0 for value in model.parameters())

    def test_the_head_is_called_exactly_once_whatever_is_trained(self, model):
        calls = []
        model.get_output_embeddings().register_forward_hook(lambda *_: calls.append(1))
        for labels in (self.labels(), torch.full_like(self.ids, -100)):
            model(self.ids, labels=labels, num_items_in_batch=3)
        assert len(calls) == 2

    def test_a_head_with_lora_keeps_the_same_loss(self, model):
        peft = pytest.importorskip("peft")
        wrapped = peft.get_peft_model(
            model, peft.LoraConfig(r=2, target_modules=["output_layer", "query_key_value"])
        )
        labels = self.labels()
        trained = int((labels[:, 1:] != -100).sum())
        mean = wrapped(input_ids=self.ids, labels=labels).loss
        summed = wrapped(input_ids=self.ids, labels=labels, num_items_in_batch=trained).loss
        assert summed.item() == pytest.approx(mean.item(), rel=RELATIVE)

    def test_a_fully_trained_copy_of_the_head_keeps_the_same_loss(self, model):
        peft = pytest.importorskip("peft")
        config = peft.LoraConfig(
            r=2, target_modules=["query_key_value"], modules_to_save=["output_layer"]
        )
        if model.config.tie_word_embeddings:
            pytest.skip("PEFT refuses to save a copy of one of two tied modules")
        wrapped = peft.get_peft_model(model, config)
        labels = self.labels()
        trained = int((labels[:, 1:] != -100).sum())
        mean = wrapped(input_ids=self.ids, labels=labels).loss
        summed = wrapped(input_ids=self.ids, labels=labels, num_items_in_batch=trained).loss
        assert summed.item() == pytest.approx(mean.item(), rel=RELATIVE)


def test_the_usual_loss_is_the_mean_over_trained_labels():
    logits, labels = torch.randn(2, 5, 7), torch.tensor([[1, 2, 3, 4, 5], [-100, 1, -100, 2, -100]])
    expected = functional.cross_entropy(
        logits[:, :-1].reshape(-1, 7), labels[:, 1:].reshape(-1), ignore_index=-100
    )
    assert torch.equal(mean_cross_entropy(logits, labels), expected)
