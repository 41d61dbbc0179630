"""`glmforge tokenizer train`: a small vocabulary of one's own dialogues or documents.

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
    files: Annotated[list[Path], typer.Argument(help="Files with dialogues or documents.")],
    out: Annotated[Path, typer.Option(help="Directory for tokenizer.model.")],
    vocab_size: Annotated[int, typer.Option(help="Number of pieces, bytes included.")] = 4000,
    character_coverage: Annotated[
        float, typer.Option(min=0, max=1, help="Share of characters that get a piece.")
    ] = 0.9995,
    max_characters: Annotated[
        int | None,
        typer.Option(min=1, help="Characters to train on, taken evenly; default: all."),
    ] = None,
) -> None:
    """Train a SentencePiece BPE in ChatGLM3's file format on the text of dialogues or documents."""
    if (out / "tokenizer.model").exists():
        raise DataError(f"--out {out}: a tokenizer.model is there already; name another directory")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"--out {out}: cannot be made ({error.strerror})") from None
    from glmforge.data import read_conversations, train_vocabulary
    from glmforge.data.vocabulary import characters_per_token, evenly

    texts: list[str] = []
    for file in files:
        texts += [m.content for found in read_conversations(file) for m in found.messages]
    texts = evenly(texts, max_characters) if max_characters else texts
    directory = train_vocabulary(texts, out, vocab_size, character_coverage=character_coverage)
    rate = characters_per_token(directory, evenly(texts, 1_000_000))
    print(f"{vocab_size} pieces written to {directory}; {rate:.2f} characters a token on this text")
