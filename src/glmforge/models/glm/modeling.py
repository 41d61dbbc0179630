"""The decoder of ChatGLM2-6B, ChatGLM3-6B and GLM-4-9B as a transformers model.

Owns the arithmetic: RMSNorm, fused query_key_value with multi-query groups, rotary positions on
half of each head, SwiGLU from one fused product. Module and state-dict names are the vendor's, so
published checkpoints and adapters fit as they are. Which tokens see each other is decided once per
forward (models/attention.py); the loss is models/head.py.

Shapes: B batch, T tokens, D hidden width, N heads, K key/value groups, H head width.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache, GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from glmforge.models.attention import AttentionRows, attend, plan_rows
from glmforge.models.glm.configuration import ChatGLM2Config
from glmforge.models.head import CACHE_FIELD, ChunkedLossMixin, LanguageHead, mean_cross_entropy
from glmforge.models.pretrained import OwnCodeModel
from glmforge.models.rotary import rotary_angles, rotary_frequencies, rotate_pairs


class RMSNorm(nn.Module):
    """x / rms(x) × weight, in fp32, back to the input's dtype."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        wide = hidden.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * (wide * scale)).to(hidden.dtype)


class SelfAttention(nn.Module):
    """Fused projection → rotary → attention bounded by documents → output projection."""

    def __init__(self, config: ChatGLM2Config, layer_index: int) -> None:
        super().__init__()
        self.layer_index = layer_index
        self.num_heads = config.num_attention_heads
        self.num_groups = config.multi_query_group_num
        self.head_width = config.kv_channels
        query_width = self.num_heads * self.head_width
        fused_width = query_width + 2 * self.num_groups * self.head_width
        fused_bias = config.add_bias_linear or config.add_qkv_bias
        self.query_key_value = nn.Linear(config.hidden_size, fused_width, bias=fused_bias)
        self.dense = nn.Linear(query_width, config.hidden_size, bias=config.add_bias_linear)

    def forward(
        self, hidden_BTD: Tensor, cos: Tensor, sin: Tensor, rows: AttentionRows, cache: Any
    ) -> Tensor:
        heads = (self.num_heads, self.num_groups, self.num_groups)
        fused = self.query_key_value(hidden_BTD).unflatten(-1, (sum(heads), self.head_width))
        q_BNTH, k_BKTH, v_BKTH = fused.transpose(1, 2).split(heads, dim=1)
        q_BNTH = rotate_pairs(q_BNTH, cos, sin)
        k_BKTH = rotate_pairs(k_BKTH, cos, sin)
        if cache is not None:
            k_BKTH, v_BKTH = cache.update(k_BKTH, v_BKTH, self.layer_index)
        return self.dense(attend(q_BNTH, k_BKTH, v_BKTH, rows).flatten(2))


class MLP(nn.Module):
    """SwiGLU whose gate and up projections are one product, gate first."""

    def __init__(self, config: ChatGLM2Config) -> None:
        super().__init__()
        width, bias = config.ffn_hidden_size, config.add_bias_linear
        self.dense_h_to_4h = nn.Linear(config.hidden_size, 2 * width, bias=bias)
        self.dense_4h_to_h = nn.Linear(width, config.hidden_size, bias=bias)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        gate, up = self.dense_h_to_4h(hidden_BTD).chunk(2, dim=-1)
        return self.dense_4h_to_h(functional.silu(gate) * up)


class GLMBlock(GradientCheckpointingLayer):
    """One pre-norm decoder layer; arguments are positional so that checkpointing sees them."""

    def __init__(self, config: ChatGLM2Config, layer_index: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.layernorm_epsilon)
        self.self_attention = SelfAttention(config, layer_index)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.layernorm_epsilon)
        self.mlp = MLP(config)

    def forward(
        self,
        hidden_BTD: Tensor,
        cos: Tensor,
        sin: Tensor,
        rows: AttentionRows,
        cache: Any = None,
    ) -> Tensor:
        normed = self.input_layernorm(hidden_BTD)
        hidden_BTD = hidden_BTD + self.self_attention(normed, cos, sin, rows, cache)
        return hidden_BTD + self.mlp(self.post_attention_layernorm(hidden_BTD))


class Embedding(nn.Module):
    """Holds word_embeddings under the vendor's name."""

    def __init__(self, config: ChatGLM2Config) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.padded_vocab_size, config.hidden_size)

    def forward(self, input_ids_BT: Tensor) -> Tensor:
        return self.word_embeddings(input_ids_BT)


class Encoder(nn.Module):
    """Holds the layers and the final norm under the vendor's name."""

    def __init__(self, config: ChatGLM2Config) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GLMBlock(config, i) for i in range(config.num_layers))
        self.final_layernorm = RMSNorm(config.hidden_size, config.layernorm_epsilon)


class ChatGLMPreTrainedModel(OwnCodeModel):
    """What transformers needs to know of the model."""

    config_class = ChatGLM2Config
    base_model_prefix = "transformer"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["GLMBlock"]
    _skip_keys_device_placement: ClassVar[list[str]] = ["past_key_values", "cache"]
    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = [r"rotary_pos_emb\.inv_freq$"]
    _supports_sdpa = True
    _supports_attention_backend = True


class ChatGLMModel(ChatGLMPreTrainedModel):
    """Embedding, layers, final norm; ``output_layer`` lives here too, as in the vendor's layout."""

    def __init__(self, config: ChatGLM2Config) -> None:
        super().__init__(config)
        self.embedding = Embedding(config)
        self.encoder = Encoder(config)
        self.output_layer = LanguageHead(config.hidden_size, config.padded_vocab_size)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embedding.word_embeddings = value

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
        cu_seq_lens_q: Tensor | None = None,
        max_length_q: int | None = None,
        **_: Any,
    ) -> BaseModelOutputWithPast:
        """Return the hidden states after the final norm, ``[B, T, D]``; see the model with head."""
        hidden_BTD = inputs_embeds
        if hidden_BTD is None:
            hidden_BTD = self.embedding(input_ids)
        cache = self._cache_for(cache if cache is not None else past_key_values, use_cache)
        past_tokens = 0 if cache is None else int(cache.get_seq_length())
        rows = plan_rows(
            num_query_tokens=hidden_BTD.shape[1],
            past_tokens=past_tokens,
            attention_mask=attention_mask,
            cu_seq_lens=cu_seq_lens_q,
            max_length=max_length_q,
            device=hidden_BTD.device,
            dtype=hidden_BTD.dtype,
            eager=self.config._attn_implementation == "eager",
        )
        if position_ids is None:
            position_ids = default_positions(hidden_BTD, attention_mask, past_tokens)
        cos, sin = self._rotary(position_ids)
        wanted = output_hidden_states or self.config.output_hidden_states
        every: list[Tensor] = []
        for layer in self.encoder.layers:
            if wanted:
                every.append(hidden_BTD)
            hidden_BTD = layer(hidden_BTD, cos, sin, rows, cache)
        hidden_BTD = self.encoder.final_layernorm(hidden_BTD)
        return BaseModelOutputWithPast(
            last_hidden_state=hidden_BTD,
            hidden_states=(*every, hidden_BTD) if wanted else None,
            **{CACHE_FIELD: cache},
        )

    def _cache_for(self, cache: Any, use_cache: bool | None) -> Any:
        recomputes = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        if recomputes:
            return None
        wanted = self.config.use_cache if use_cache is None else use_cache
        if cache is None and wanted and not self.training:
            return DynamicCache(config=self.config)
        return cache

    def _rotary(self, position_ids_BT: Tensor) -> tuple[Tensor, Tensor]:
        # Half of each head is rotated; the other half carries no position.
        config = self.config
        frequencies = rotary_frequencies(
            config.kv_channels // 2, config.rope_base, position_ids_BT.device
        )
        if config.position_divisor != 1.0:
            frequencies = frequencies / config.position_divisor
        return rotary_angles(position_ids_BT, frequencies)


def default_positions(
    hidden_BTD: Tensor, attention_mask: Tensor | None, past_tokens: int
) -> Tensor:
    """Return ``[B or 1, T]`` positions that count tokens from the first one that is no padding."""
    length = hidden_BTD.shape[1]
    if attention_mask is not None and attention_mask.dim() == 2:
        counted = attention_mask.long().cumsum(-1) - 1
        return counted.clamp(min=0)[:, past_tokens : past_tokens + length]
    positions = torch.arange(past_tokens, past_tokens + length, device=hidden_BTD.device)
    return positions[None]


class ChatGLMForConditionalGeneration(ChunkedLossMixin, ChatGLMPreTrainedModel, GenerationMixin):
    """ChatGLM2, ChatGLM3 or GLM-4-9B with its language head.

    ``forward`` takes:
        input_ids: ``[B, T]``.
        attention_mask: ``[B, past + T]``, 1 = token, 0 = padding on either side.
        position_ids: ``[B, T]``; by default tokens are counted, padding left out.
        past_key_values: a transformers ``Cache``; ``cache`` is its newer name.
        cache: see ``past_key_values``.
        inputs_embeds: ``[B, T, D]`` instead of ``input_ids``.
        labels: ``[B, T]`` unshifted ids, -100 = not trained.
        use_cache: fill a cache and return it.
        output_hidden_states: return the input of each layer and the normed output.
        logits_to_keep: the last so many positions (or an index tensor); 0 = all.
        num_items_in_batch: trained tokens of the whole step. Given together with ``labels``,
            the loss is Σ nll over it, computed in chunks, and no logits are returned.
        cu_seq_lens_q: int32 ``[documents + 1]``, bounds of the documents of packed rows over
            the flattened ``B * T`` tokens; ``position_ids`` restart at each.
        cu_seq_lens_k: the same bounds (transformers passes both).
        max_length_q: the longest document, in tokens.
        max_length_k: the same.
    """

    _tied_weights_keys: ClassVar[dict[str, str]] = {
        "transformer.output_layer.weight": "transformer.embedding.word_embeddings.weight"
    }

    def __init__(self, config: ChatGLM2Config) -> None:
        super().__init__(config)
        self.transformer = ChatGLMModel(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.transformer.embedding.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.transformer.embedding.word_embeddings = value

    def get_output_embeddings(self) -> nn.Module:
        return self.transformer.output_layer

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.transformer.output_layer = value

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
        cu_seq_lens_k: Tensor | None = None,
        max_length_q: int | None = None,
        max_length_k: int | None = None,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """Run the model; see the class for the arguments.

        Raises:
            ModelError: packed rows came with a mask or a filled cache.

        """
        chunked = labels is not None and num_items_in_batch is not None
        outputs = self.transformer(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache if cache is not None else past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=False if labels is not None else use_cache,
            output_hidden_states=output_hidden_states,
            cu_seq_lens_q=cu_seq_lens_q,
            max_length_q=max_length_q,
        )
        hidden_BTD = outputs.last_hidden_state
        if chunked:
            loss = self.chunked_loss(hidden_BTD, labels, num_items_in_batch, cu_seq_lens_q)
            return CausalLMOutputWithPast(loss=loss, hidden_states=outputs.hidden_states)
        if isinstance(logits_to_keep, int):
            kept = hidden_BTD[:, -logits_to_keep:]
        else:
            kept = hidden_BTD[:, logits_to_keep]
        logits = self.transformer.output_layer(kept)
        return CausalLMOutputWithPast(
            loss=None if labels is None else mean_cross_entropy(logits, labels),
            logits=logits,
            hidden_states=outputs.hidden_states,
            **{CACHE_FIELD: outputs.get(CACHE_FIELD)},
        )
