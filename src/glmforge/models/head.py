"""The language head and the loss over it, without ever holding the logits of a whole batch.

Owns `LanguageHead` (a linear layer that can also return the summed negative log likelihood, chunk
by chunk, with its gradients formed in the forward pass) and `ChunkedLossMixin`, by which a causal
LM selects the trained positions and calls its head exactly once. The trainer divides by the
trained tokens of the whole step, so that the sum is what the model returns per micro-batch.

Shapes: N selected tokens, D hidden width, V vocabulary rows, B batch, T tokens of a row.
"""

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import CausalLMOutputWithPast

from glmforge.errors import ModelError
from glmforge.models.packed_interface import PACKED_ATTENTION

# transformers 5.24 renamed the cache of models and outputs; both names are accepted by our models
# and the installed version's own is returned. Goes when the lower bound is 5.24.
CACHE_FIELD = (
    "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
)

IGNORED = -100
"""Label of a token that is not trained."""

_MAX_CHUNK_TOKENS = 4096
_MAX_CHUNK_LOGITS = 2**29


class _ChunkedNll(torch.autograd.Function):
    """Σ nll / divisor of a linear head; gradients are made while the logits exist.

    The division happens before the gradient of the logits is rounded to the weight's dtype, as in
    the plain path. In fp16 it waits for backward, where the loss scale has come in: a slope
    divided by thousands of tokens would vanish.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        labels_N: Tensor,
        divisor: float | Tensor,
        chunk: int,
        grad: bool,
    ) -> Tensor:
        want_hidden = grad and ctx.needs_input_grad[0]
        want_weight = grad and ctx.needs_input_grad[1]
        grad_hidden = torch.empty_like(hidden_ND) if want_hidden else None
        grad_weight = None
        if want_weight:
            grad_weight = torch.zeros_like(weight_VD, dtype=torch.float32)
        total = hidden_ND.new_zeros((), dtype=torch.float32)
        for start in range(0, hidden_ND.shape[0], chunk):
            part_ND = hidden_ND[start : start + chunk]
            label_N1 = labels_N[start : start + chunk, None]
            logits_NV = functional.linear(part_ND, weight_VD).float()
            lse_N1 = logits_NV.logsumexp(-1, keepdim=True)
            total += (lse_N1 - logits_NV.gather(1, label_N1)).sum()
            if not (want_hidden or want_weight):
                del logits_NV
                continue
            # d nll / d logits = softmax - onehot(label), written over the logits.
            slope_NV = logits_NV.sub_(lse_N1).exp_()
            slope_NV.scatter_add_(1, label_N1, slope_NV.new_full((), -1.0).expand_as(label_N1))
            if weight_VD.dtype != torch.float16:
                slope_NV.div_(divisor)
            slope_NV = slope_NV.to(weight_VD.dtype)
            if grad_hidden is not None:
                grad_hidden[start : start + chunk] = _product(slope_NV, weight_VD)
            if grad_weight is not None:
                grad_weight += _product_fp32(slope_NV.t(), part_ND)
            del logits_NV, slope_NV  # or they would lie beside the next chunk's
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.weight_dtype = weight_VD.dtype
        ctx.late_divisor = divisor if weight_VD.dtype == torch.float16 else 1.0
        return total / divisor

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        scale = grad_total / ctx.late_divisor
        if grad_hidden is not None:
            grad_hidden = grad_hidden * scale
        if grad_weight is not None:
            grad_weight = (grad_weight * scale).to(ctx.weight_dtype)
        return grad_hidden, grad_weight, None, None, None, None


_HALVES = (torch.bfloat16, torch.float16)


def _product_fp32(left: Tensor, right: Tensor) -> Tensor:
    # Products of chunks are added up: rounding each to half precision would show in the sum.
    if left.device.type == "cuda" and left.dtype in _HALVES:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def _product(left: Tensor, right: Tensor) -> Tensor:
    # A chunk is short and the vocabulary long: cuBLAS splits such sums, and by torch's default adds
    # the pieces of a half-precision product up in half precision. A wide result is added up wide.
    if left.device.type == "cuda" and left.dtype in _HALVES:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left @ right


class LanguageHead(nn.Linear):
    """A bias-free output layer: ``head(hidden)`` gives logits, with labels Σ nll."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__(hidden_size, vocab_size, bias=False)

    @classmethod
    def taking_over(cls, linear: nn.Linear) -> Self:
        """Return a head that owns the weight parameter of a bias-free linear layer."""
        assert linear.bias is None, "the head of a language model has no bias"
        head = cls(1, 1)
        head.weight = linear.weight
        head.in_features, head.out_features = linear.in_features, linear.out_features
        return head

    def forward(
        self,
        hidden: Tensor,
        labels_N: Tensor | None = None,
        divisor: float | Tensor = 1.0,
        chunk: int | None = None,
    ) -> Tensor:
        """Return logits, or the summed negative log likelihood of ``labels_N``.

        Args:
            hidden: ``[..., D]``; with labels ``[N, D]``.
            labels_N: token ids, all of them trained; N may be 0 (the sum is then an exact 0 that
                still has a graph).
            divisor: what the sum is divided by (trained tokens of the step).
            chunk: tokens whose logits exist at a time.

        Returns:
            Logits ``[..., V]`` in the weight's dtype, or a float32 scalar in nats.

        """
        if labels_N is None:
            return super().forward(hidden)
        if chunk is None:
            chunk = max(1, min(_MAX_CHUNK_TOKENS, _MAX_CHUNK_LOGITS // self.weight.shape[0]))
        grad = torch.is_grad_enabled()
        return _ChunkedNll.apply(hidden, self.weight, labels_N, divisor, chunk, grad)


def next_token_targets(labels_BT: Tensor, cu_seq_lens: Tensor | None = None) -> Tensor:
    """Return ``[B * T]`` the label of each position's next token, -100 where none is trained.

    The first token of a row, and of a document inside a packed row, is never a target.
    """
    targets_BT = torch.full_like(labels_BT, IGNORED)
    targets_BT[:, :-1] = labels_BT[:, 1:]
    targets = targets_BT.reshape(-1)
    if cu_seq_lens is not None:
        targets[cu_seq_lens[1:].long() - 1] = IGNORED
    return targets


def mean_cross_entropy(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Return the mean next-token loss over trained labels: the usual one, logits already whole."""
    targets = next_token_targets(labels_BT).to(logits_BTV.device)
    flat = logits_BTV.reshape(-1, logits_BTV.shape[-1]).float()
    return functional.cross_entropy(flat, targets, ignore_index=IGNORED)


class ChunkedLossMixin:
    """Gives a causal LM the summed loss over trained tokens, divided by the step's token count."""

    def chunked_loss(
        self,
        hidden_BTD: Tensor,
        labels_BT: Tensor,
        num_items_in_batch: int | Tensor,
        cu_seq_lens: Tensor | None = None,
    ) -> Tensor:
        """Return Σ nll / num_items_in_batch (float32 scalar), calling the head exactly once."""
        targets = next_token_targets(labels_BT.to(hidden_BTD.device), cu_seq_lens)
        chosen_N = (targets != IGNORED).nonzero().squeeze(1)
        hidden_ND = hidden_BTD.reshape(-1, hidden_BTD.shape[-1]).index_select(0, chosen_N)
        labels_N = targets.index_select(0, chosen_N)
        head: Any = self.get_output_embeddings()  # type: ignore[attr-defined]
        divisor = num_items_in_batch + (num_items_in_batch == 0)  # 0 / 0 is no loss
        # PEFT wraps a head that is in modules_to_save (and passes arguments through), or replaces
        # one that LoRA targets: that one only knows how to give logits.
        if isinstance(getattr(head, "original_module", head), LanguageHead):
            return head(hidden_ND, labels_N, divisor=divisor)
        total = functional.cross_entropy(head(hidden_ND).float(), labels_N, reduction="sum")
        return total / divisor


class ChunkedLossForward(ChunkedLossMixin):
    """Put before a transformers causal LM class: same model, `ChunkedLossMixin`'s loss.

    ``forward`` with ``labels`` and ``num_items_in_batch`` runs the decoder and the chunked loss
    only; any other call is the class's own.
    """

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        plain: Any = self.get_output_embeddings()  # type: ignore[attr-defined]
        self.set_output_embeddings(LanguageHead.taking_over(plain))  # type: ignore[attr-defined]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: int | Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the model; see the class for which loss it returns."""
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
        }
        if kwargs.get("cu_seq_lens_q") is not None:
            _check_packed_rows(self, attention_mask)
            # A four-dimensional mask is passed on as it is: none is built for packed rows, whose
            # bounds reach our attention function (packed_interface.py) by name.
            inputs["attention_mask"] = torch.zeros(
                1, 1, 1, 1, device=kwargs["cu_seq_lens_q"].device
            )
        if labels is None or num_items_in_batch is None:
            return super().forward(  # type: ignore[misc]
                **inputs,
                labels=labels,
                use_cache=use_cache,
                logits_to_keep=logits_to_keep,
                **kwargs,
            )
        decoder: Any = self.base_model  # type: ignore[attr-defined]
        hidden = decoder(**inputs, use_cache=False, **kwargs).last_hidden_state
        loss = self.chunked_loss(hidden, labels, num_items_in_batch, kwargs.get("cu_seq_lens_q"))
        return CausalLMOutputWithPast(loss=loss, logits=None)


def _check_packed_rows(model: Any, attention_mask: Tensor | None) -> None:
    if attention_mask is not None:
        raise ModelError(
            "packed rows (cu_seq_lens_q) take position_ids that restart at each document, and "
            "neither attention_mask nor a filled cache"
        )
    if model.config._attn_implementation != PACKED_ATTENTION:
        raise ModelError(
            f"attention {model.config._attn_implementation!r} cannot bound the documents of packed "
            "rows: load the model with attention='auto'"
        )
