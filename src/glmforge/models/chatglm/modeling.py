"""ChatGLM-6B as a transformers model.

Owns the arithmetic of the first generation: LayerNorm, query_key_value packed head by head,
rotary positions on both halves of a head (2-D) or on the whole of it (1-D), GELU, and a residual
that is the *normed* input × sqrt(2 · 28). Names are the vendor's. Positions and the prefix
mask come from the ids (positions.py) unless they are given.

Shapes: B batch, T tokens, S past + T, D hidden width, N heads, H head width.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache, GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from glmforge.errors import ModelError
from glmforge.models.attention import AttentionRows, attend, plan_prefix_rows, plan_rows
from glmforge.models.chatglm.configuration import ChatGLM6BConfig
from glmforge.models.chatglm.positions import find_prefix, prefix_positions, prefix_visibility
from glmforge.models.head import CACHE_FIELD, ChunkedLossMixin, LanguageHead, mean_cross_entropy
from glmforge.models.pretrained import OwnCodeModel
from glmforge.models.rotary import rotary_angles, rotary_frequencies, rotate_halves
from glmforge.models.varlen import has_varlen_kernel

RESIDUAL_SCALE = math.sqrt(2 * 28)
"""sqrt(2 · layers) of the published model. The original's layer never gets the config's number of
layers and keeps its default of 28, also where the model has fewer: the reference outputs of three
layers show it."""

Angles = tuple[tuple[Tensor, Tensor], ...]
"""Cosine and sine of each row of positions: two in the 2-D form, one in the 1-D form."""


class SelfAttention(nn.Module):
    """Projection packed head by head → rotary on each part of a head → attention → projection."""

    def __init__(self, config: ChatGLM6BConfig, layer_index: int) -> None:
        super().__init__()
        self.layer_index = layer_index
        self.num_heads = config.num_attention_heads
        self.query_key_value = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, hidden_BTD: Tensor, angles: Angles, rows: AttentionRows, cache: Any
    ) -> Tensor:
        fused = self.query_key_value(hidden_BTD).unflatten(-1, (self.num_heads, -1))
        q_BNTH, k_BNTH, v_BNTH = fused.transpose(1, 2).chunk(3, dim=-1)
        q_BNTH, k_BNTH = _rotate(q_BNTH, angles), _rotate(k_BNTH, angles)
        if cache is not None:
            k_BNTH, v_BNTH = cache.update(k_BNTH, v_BNTH, self.layer_index)
        return self.dense(attend(q_BNTH, k_BNTH, v_BNTH, rows).flatten(2))


def _rotate(x_BNTH: Tensor, angles: Angles) -> Tensor:
    parts = x_BNTH.chunk(len(angles), dim=-1)
    return torch.cat([rotate_halves(x, *angle) for x, angle in zip(parts, angles)], dim=-1)


class MLP(nn.Module):
    """Two products with a tanh-approximated GELU between them."""

    def __init__(self, config: ChatGLM6BConfig) -> None:
        super().__init__()
        self.dense_h_to_4h = nn.Linear(config.hidden_size, config.inner_hidden_size)
        self.dense_4h_to_h = nn.Linear(config.inner_hidden_size, config.hidden_size)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        inner = functional.gelu(self.dense_h_to_4h(hidden_BTD), approximate="tanh")
        return self.dense_4h_to_h(inner)


class GLMBlock(GradientCheckpointingLayer):
    """One layer; its residuals are the normed inputs, scaled."""

    def __init__(self, config: ChatGLM6BConfig, layer_index: int) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layernorm_epsilon
        self.input_layernorm = nn.LayerNorm(width, eps=eps)
        self.attention = SelfAttention(config, layer_index)
        self.post_attention_layernorm = nn.LayerNorm(width, eps=eps)
        self.mlp = MLP(config)

    def forward(
        self, hidden_BTD: Tensor, angles: Angles, rows: AttentionRows, cache: Any = None
    ) -> Tensor:
        normed = self.input_layernorm(hidden_BTD)
        attended = self.attention(normed, angles, rows, cache)
        normed = self.post_attention_layernorm(normed * RESIDUAL_SCALE + attended)
        return normed * RESIDUAL_SCALE + self.mlp(normed)


class ChatGLM6BPreTrainedModel(OwnCodeModel):
    """What transformers needs to know of the model."""

    config_class = ChatGLM6BConfig
    base_model_prefix = "transformer"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["GLMBlock"]
    _skip_keys_device_placement: ClassVar[list[str]] = ["past_key_values", "cache"]
    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = [r"rotary_emb\.inv_freq$"]
    _supports_sdpa = True


class ChatGLM6BModel(ChatGLM6BPreTrainedModel):
    """Embedding, layers, final norm."""

    def __init__(self, config: ChatGLM6BConfig) -> None:
        super().__init__(config)
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(GLMBlock(config, i) for i in range(config.num_layers))
        self.final_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layernorm_epsilon)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.word_embeddings = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        **_: Any,
    ) -> BaseModelOutputWithPast:
        """Return the hidden states after the final norm, ``[B, T, D]``; see the model with head."""
        hidden_BTD = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        cache = self._cache_for(cache if cache is not None else past_key_values, use_cache)
        past_tokens = 0 if cache is None else int(cache.get_seq_length())
        position_ids, rows = self._plan(
            hidden_BTD, input_ids, attention_mask, position_ids, past_tokens
        )
        angles = self._angles(position_ids)
        wanted = output_hidden_states or self.config.output_hidden_states
        every: list[Tensor] = []
        for layer in self.layers:
            if wanted:
                every.append(hidden_BTD)
            hidden_BTD = layer(hidden_BTD, angles, rows, cache)
        hidden_BTD = self.final_layernorm(hidden_BTD)
        return BaseModelOutputWithPast(
            last_hidden_state=hidden_BTD,
            hidden_states=(*every, hidden_BTD) if wanted else None,
            **{CACHE_FIELD: cache},
        )

    def _cache_for(self, cache: Any, use_cache: bool | None) -> Any:
        if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            return None
        if getattr(cache, "is_compileable", False):
            raise ModelError(
                f"ChatGLM-6B does not generate with a {type(cache).__name__}: its prefix mask is "
                'made for the tokens that are there. Leave out cache_implementation="static", or '
                "pass a DynamicCache"
            )
        wanted = self.config.use_cache if use_cache is None else use_cache
        if cache is None and wanted and not self.training:
            return DynamicCache(config=self.config)
        return cache

    def _plan(
        self,
        hidden_BTD: Tensor,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        past_tokens: int,
    ) -> tuple[Tensor, AttentionRows]:
        """Return positions and rows: as given, else from the ids."""
        num_tokens, device, dtype = hidden_BTD.shape[1], hidden_BTD.device, hidden_BTD.dtype
        eager = self.config._attn_implementation == "eager"
        if attention_mask is not None and attention_mask.dim() == 4:
            mask_given, visible = True, _visible_from_vendor(attention_mask)
        else:
            mask_given, visible = False, attention_mask
            _refuse_length(attention_mask, past_tokens + num_tokens)
        if position_ids is None or not (mask_given or past_tokens):
            if input_ids is None or past_tokens:
                raise ModelError(
                    "ChatGLM-6B takes its positions and mask from whole rows of input_ids: pass "
                    "position_ids with a filled cache, and a 4-D attention_mask too with "
                    "inputs_embeds"
                )
            prefix = find_prefix(input_ids, self.config, None if mask_given else attention_mask)
            if position_ids is None:
                position_ids = prefix_positions(prefix, num_tokens, self.config)
            if not mask_given and not eager and has_varlen_kernel(device, dtype):
                return position_ids, plan_prefix_rows(prefix.context, prefix.padding, num_tokens)
            if not mask_given:
                visible = prefix_visibility(prefix, num_tokens)
        rows = plan_rows(
            num_query_tokens=num_tokens,
            past_tokens=past_tokens,
            attention_mask=visible,
            device=device,
            dtype=dtype,
            eager=eager,
        )
        return position_ids, rows

    def _angles(self, position_ids: Tensor) -> Angles:
        # The original keeps the frequencies in half precision whatever the model's dtype.
        config = self.config
        parts = position_ids.unbind(1) if config.position_encoding_2d else (position_ids,)
        width = config.hidden_size // config.num_attention_heads // len(parts)
        frequencies = rotary_frequencies(width, 10000.0, position_ids.device).half().float()
        return tuple(rotary_angles(part, frequencies) for part in parts)


def _refuse_length(mask: Tensor | None, num_tokens: int) -> None:
    if mask is not None and mask.shape[-1] != num_tokens:
        raise ModelError(
            f"attention_mask is of {mask.shape[-1]} tokens, but the rows have {num_tokens}, those "
            "in the cache included: pass the mask that the tokenizer gave with the ids"
        )


def _visible_from_vendor(masked_B1TS: Tensor) -> Tensor:
    """Turn the original's 4-D mask (True or 1 = hidden) round; a padding token sees itself."""
    visible = ~masked_B1TS.bool()
    num_queries, num_keys = visible.shape[-2:]
    itself = torch.eye(num_queries, dtype=torch.bool, device=visible.device)
    return visible | functional.pad(itself, (num_keys - num_queries, 0))


class ChatGLM6BForConditionalGeneration(
    ChunkedLossMixin, ChatGLM6BPreTrainedModel, GenerationMixin
):
    """ChatGLM-6B with its language head.

    ``forward`` takes:
        input_ids: ``[B, T]``: context, mask token, ``<sop>``, answer.
        attention_mask: ``[B, T]``, 1 = token, 0 = padding on either side; or the original's
            ``[B, 1, T, S]``, True = hidden.
        position_ids: ``[B, 2, T]`` (``[B, T]`` in the 1-D form); by default from the ids.
        past_key_values: a transformers ``Cache`` that holds the whole prefix; ``cache`` is
            its newer name. With it ``position_ids`` are needed.
        cache: see ``past_key_values``.
        inputs_embeds: ``[B, T, D]`` instead of ``input_ids``.
        labels: ``[B, T]`` unshifted ids, -100 = not trained.
        use_cache: fill a cache and return it.
        output_hidden_states: return the input of each layer and the normed output.
        logits_to_keep: the last so many positions (or an index tensor); 0 = all.
        num_items_in_batch: trained tokens of the whole step. Given together with ``labels``,
            the loss is Σ nll over it, computed in chunks, and no logits are returned.
        cu_seq_lens_q: refused: a prefix-LM has one answer a row and is not packed.
    """

    _tied_weights_keys: ClassVar[dict[str, str]] = {
        "lm_head.weight": "transformer.word_embeddings.weight"
    }

    def __init__(self, config: ChatGLM6BConfig) -> None:
        super().__init__(config)
        self.transformer = ChatGLM6BModel(config)
        self.lm_head = LanguageHead(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head = value

    def tie_weights(
        self, missing_keys: set[str] | None = None, recompute_mapping: bool = True
    ) -> None:
        """Tie the head to the embeddings even where the file holds another ``lm_head.weight``."""
        if missing_keys is not None and self.config.tie_word_embeddings:
            missing_keys.add("lm_head.weight")
        super().tie_weights(missing_keys=missing_keys, recompute_mapping=recompute_mapping)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: int | Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """Run the model; see the class for the arguments.

        Raises:
            ModelError: a row lacks its mask token or ``<sop>``, or rows are packed.

        """
        if cu_seq_lens_q is not None:
            raise ModelError("ChatGLM-6B rows cannot be packed: set data.packing to false")
        outputs = self.transformer(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache if cache is not None else past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=False if labels is not None else use_cache,
            output_hidden_states=output_hidden_states,
        )
        hidden_BTD = outputs.last_hidden_state
        if labels is not None and num_items_in_batch is not None:
            loss = self.chunked_loss(hidden_BTD, labels, num_items_in_batch)
            return CausalLMOutputWithPast(loss=loss, hidden_states=outputs.hidden_states)
        kept = (
            hidden_BTD[:, -logits_to_keep:]
            if isinstance(logits_to_keep, int)
            else (hidden_BTD[:, logits_to_keep])
        )
        logits = self.lm_head(kept)
        return CausalLMOutputWithPast(
            loss=None if labels is None else mean_cross_entropy(logits, labels),
            logits=logits,
            hidden_states=outputs.hidden_states,
            **{CACHE_FIELD: outputs.get(CACHE_FIELD)},
        )

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        """Give each step the two-row positions of its place in the whole row."""
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(input_ids, **kwargs)
        prefix = find_prefix(input_ids, self.config, kwargs.get("attention_mask"))
        positions = prefix_positions(prefix, input_ids.shape[1], self.config)
        inputs["position_ids"] = positions[..., -inputs["input_ids"].shape[1] :]
        return inputs

    def generate(self, inputs: Tensor | None = None, **kwargs: Any) -> Any:
        """Generate as transformers does; the tokenizer's 4-D mask and positions may be passed.

        Raises:
            ModelError: an option that splits a row, or a mask of another length than the rows.
        """
        settings = kwargs.get("generation_config") or self.generation_config
        asked = {
            name: kwargs.get(name, getattr(settings, name, None))
            for name in ("prefill_chunk_size", "guidance_scale")
        }
        refused = [
            f"ChatGLM-6B does not generate with {name} ({value!r}): its positions and mask need "
            "every row whole, mask token and <sop> included; leave it out"
            for name, value in asked.items()
            if value is not None and not (name == "guidance_scale" and value == 1)
        ]
        if refused:
            raise ModelError(refused)
        mask = kwargs.get("attention_mask")
        if mask is not None and mask.dim() == 4:
            # A token that no query of its row sees, itself included, is padding.
            kwargs["attention_mask"] = (~mask[:, 0].bool().all(dim=1)).long()
        kwargs.pop("position_ids", None)
        ids = inputs if inputs is not None else kwargs.get("input_ids")
        if ids is not None:
            _refuse_length(kwargs.get("attention_mask"), ids.shape[1])
        return super().generate(inputs, **kwargs)
