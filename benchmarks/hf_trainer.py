"""The stack that users run today: transformers Trainer + PEFT LoRA + DeepSpeed ZeRO-2.

The baseline of lora_speed.py: transformers' own Glm modules at a real shape, random weights,
gradient checkpointing on, rows padded to the longest of their micro-batch. Prints one JSON line.
"""

import argparse
import itertools
import json
import os
import statistics
import time

import torch
from lora_speed import BASELINE_LORA, lengths_of, row_ids
from random_checkpoint import SHAPES

for name, value in {
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29517",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
}.items():
    os.environ.setdefault(name, value)

DEEPSPEED = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_allow_untested_optimizer": True,
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 2,
        "allgather_bucket_size": 5e8,
        "reduce_bucket_size": 5e8,
        "contiguous_gradients": True,
        "overlap_comm": False,
    },
}


def model_of(shape: str):
    from peft import LoraConfig, get_peft_model
    from transformers import GlmConfig, GlmForCausalLM

    keys = SHAPES[shape]
    config = GlmConfig(
        vocab_size=keys["padded_vocab_size"],
        hidden_size=keys["hidden_size"],
        intermediate_size=keys["ffn_hidden_size"],
        num_hidden_layers=keys["num_layers"],
        num_attention_heads=keys["num_attention_heads"],
        num_key_value_heads=keys["multi_query_group_num"],
        head_dim=keys["kv_channels"],
        rms_norm_eps=keys["layernorm_epsilon"],
        attention_bias=True,
        use_cache=False,
        pad_token_id=0,
        max_position_embeddings=8192,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = GlmForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    targets = ["q_proj", "k_proj", "v_proj"]
    return get_peft_model(model, LoraConfig(target_modules=targets, **BASELINE_LORA))


def main() -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--lengths", choices=["fixed", "dialogues"], default="fixed")
    args = parser.parse_args()
    vocabulary = SHAPES[args.shape]["padded_vocab_size"]
    lengths = lengths_of(args.lengths, args.rows * (args.steps + 2))
    times, real = [], []

    class Clock(TrainerCallback):
        def on_step_end(self, *_, **__):
            torch.cuda.synchronize()
            times.append(time.perf_counter())

    def collate(rows):
        width = -(-max(len(row["input_ids"]) for row in rows) // 8) * 8
        batch = {
            key: torch.full((len(rows), width), fill)
            for key, fill in (("input_ids", 0), ("labels", -100), ("attention_mask", 0))
        }
        for number, row in enumerate(rows):
            length = len(row["input_ids"])
            batch["input_ids"][number, :length] = row["input_ids"]
            batch["labels"][number, :length] = row["input_ids"]
            batch["attention_mask"][number, :length] = 1
        real.append(sum(len(row["input_ids"]) for row in rows))
        return batch

    trainer = Trainer(
        model=model_of(args.shape),
        args=TrainingArguments(
            output_dir="/tmp/hf-trainer",
            max_steps=args.steps,
            per_device_train_batch_size=args.rows,
            bf16=True,
            gradient_checkpointing=True,
            deepspeed=DEEPSPEED,
            save_strategy="no",
            report_to=[],
            learning_rate=1e-4,
            remove_unused_columns=False,
            disable_tqdm=True,
        ),
        train_dataset=[{"input_ids": row_ids(i, n, vocabulary)} for i, n in enumerate(lengths)],
        data_collator=collate,
        callbacks=[Clock()],
    )
    trainer.train()
    seconds = [b - a for a, b in itertools.pairwise(times[2:])]
    tokens = statistics.mean(real[3 : len(times)])
    result = {
        "tokens_per_second": round(tokens / statistics.median(seconds)),
        "step_seconds": round(statistics.median(seconds), 4),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    main()
