"""Conversations to tensors: read, check, render, fit, pack, deal.

``train.jsonl:17`` → ``reading`` → ``formats`` → ``Conversation`` (judged by ``rules``) →
``templates`` → segments → ``truncation`` → ``examples`` → ``packing`` → ``loader`` → ``Batch``.
Everything takes plain values: no run config comes in here, and a tokenizer is used only through
``family``, ``encode_text`` and ``convert_tokens_to_ids``.
"""

from glmforge.data.collate import Batch, collate
from glmforge.data.conversation import Conversation, Message, Problem
from glmforge.data.examples import Counts, Example, ExampleList, ExampleSet, build_examples
from glmforge.data.loader import BatchPlan, StepBatches, eval_batches
from glmforge.data.packing import PackedRows, pack, unpacked
from glmforge.data.sources import load_examples, read_conversations, write_skipped
from glmforge.data.templates import encode_conversation, encode_rows, generation_prompt
from glmforge.data.vocabulary import train_vocabulary

__all__ = [
    "Batch",
    "BatchPlan",
    "Conversation",
    "Counts",
    "Example",
    "ExampleList",
    "ExampleSet",
    "Message",
    "PackedRows",
    "Problem",
    "StepBatches",
    "build_examples",
    "collate",
    "encode_conversation",
    "encode_rows",
    "eval_batches",
    "generation_prompt",
    "load_examples",
    "pack",
    "read_conversations",
    "train_vocabulary",
    "unpacked",
    "write_skipped",
]
