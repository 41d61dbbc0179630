"""`glmforge tokenizer train`: a small vocabulary of one's own dialogues.

For a model that starts from random weights; a pretrained model keeps its own vocabulary. The
training itself is in `glmforge.data.vocabulary`.
"""

from pathlib import Path
from typing import Annotated

import typer

from glmforge.errors import DataError

app = typer.Typer(
    help="Tokenizers.", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
)


@app.callback()
def tokenizer() -> None:
    """Work on tokenizers."""


@app.command()
def train(
    files: Annotated[list[Path], typer.Argument(help="Files with dialogues.")],
    out: Annotated[Path, typer.Option(help="Directory for tokenizer.model.")],
    vocab_size: Annotated[int, typer.Option(help="Number of pieces, bytes included.")] = 4000,
    character_coverage: Annotated[
        float, typer.Option(min=0, max=1, help="Share of characters that get a piece.")
    ] = 0.9995,
) -> None:
    """Train a SentencePiece BPE in ChatGLM3's file format on the dialogues' text."""
    if (out / "tokenizer.model").exists():
        raise DataError(f"--out {out}: a tokenizer.model is there already; name another directory")
    from glmforge.data import read_conversations, train_vocabulary

    texts = [
        message.content
        for file in files
        for conversation in read_conversations(file)
        for message in conversation.messages
    ]
    directory = train_vocabulary(texts, out, vocab_size, character_coverage=character_coverage)
    print(f"{vocab_size} pieces written to {directory}")
