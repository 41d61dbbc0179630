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
    "glm4": {
        **DECODER_KEYS,
        "_name_or_path": "THUDM/glm-4-9b-chat",
        "layernorm_epsilon": 1.5625e-07,
        "rope_ratio": 500,
        "num_hidden_layers": 2,
        "eos_token_id": [505, 506],
        "pad_token_id": 505,
    },
}
