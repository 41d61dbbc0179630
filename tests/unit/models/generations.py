"""The config.json of a tiny model of each generation, keys as on the hub."""

from typing import Any

DECODER_KEYS = {
    "model_type": "chatglm",
    "architectures": ["ChatGLMModel"],
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "ffn_hidden_size": 112,
    "hidden_size": 64,
    "kv_channels": 16,
    "layernorm_epsilon": 1e-05,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "num_attention_heads": 4,
    "num_layers": 2,
    "original_rope": True,
    "padded_vocab_size": 512,
    "post_layer_norm": True,
    "rmsnorm": True,
    "seq_length": 512,
    "use_cache": True,
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

GENERATIONS: dict[str, dict[str, Any]] = {
    "chatglm2": {**DECODER_KEYS, "_name_or_path": "THUDM/chatglm2-6b"},
    "chatglm2-32k": {**DECODER_KEYS, "_name_or_path": "THUDM/chatglm2-6b-32k", "rope_ratio": 16},
    "chatglm3": {**DECODER_KEYS, "_name_or_path": "THUDM/chatglm3-6b"},
    "chatglm3-32k": {**DECODER_KEYS, "_name_or_path": "THUDM/chatglm3-6b-32k", "rope_ratio": 50},
    "glm4-9b": {
        **DECODER_KEYS,
        "_name_or_path": "THUDM/glm-4-9b-chat",
        "layernorm_epsilon": 1.5625e-07,
        "rope_ratio": 500,
        "num_hidden_layers": 2,
        "eos_token_id": [505, 506],
        "pad_token_id": 505,
    },
}

FIRST_GENERATION_KEYS = {
    "model_type": "chatglm",
    "architectures": ["ChatGLMModel"],
    "_name_or_path": "THUDM/chatglm-6b",
    "bos_token_id": 504,
    "eos_token_id": 505,
    "mask_token_id": 500,
    "gmask_token_id": 501,
    "pad_token_id": 3,
    "hidden_size": 64,
    "inner_hidden_size": 256,
    "layernorm_epsilon": 1e-05,
    "max_sequence_length": 512,
    "num_attention_heads": 4,
    "num_layers": 2,
    "position_encoding_2d": True,
    "torch_dtype": "float32",
    "use_cache": True,
    "vocab_size": 512,
}

FIRST_GENERATION: dict[str, dict[str, Any]] = {
    "chatglm": FIRST_GENERATION_KEYS,
    "chatglm-1d": {**FIRST_GENERATION_KEYS, "position_encoding_2d": False},
    "chatglm-untied": {**FIRST_GENERATION_KEYS, "tie_word_embeddings": False},
}

_SPLIT_KEYS = {
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": [505, 506],
    "head_dim": 16,
    "hidden_size": 64,
    "intermediate_size": 112,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 505,
    "rope_parameters": {
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0,
        "rope_type": "default",
    },
    "tie_word_embeddings": False,
    "vocab_size": 512,
}

TRANSFORMERS_OWN: dict[str, dict[str, Any]] = {
    "glm": {"model_type": "glm", "architectures": ["GlmForCausalLM"], **_SPLIT_KEYS},
    "glm4": {"model_type": "glm4", "architectures": ["Glm4ForCausalLM"], **_SPLIT_KEYS},
}
