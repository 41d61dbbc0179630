"""Adapters and merged models in stock libraries alone: the process cannot import glmforge."""

import pytest

from glmforge.adapters import open_adapter
from glmforge.errors import ExportError
from glmforge.export import export
from glmforge.export.proof import difference, logits_of, opened_by_stock_transformers
from glmforge.models import load_model
from small_models import write_random_adapter, write_small_model

pytestmark = pytest.mark.usefixtures("warm_proofs")
IDS = [[5, 6, 7, 8, 9, 300, 301], [11, 12, 13]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory, warm_proofs):
    """A base and an adapter in the chatglm layout, and both exported for stock libraries."""
    directory = tmp_path_factory.mktemp("stock")
    write_small_model(directory / "base", tie_word_embeddings=False)
    targets = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")
    write_random_adapter(directory / "base", directory / "adapter", targets)
    export(directory / "base", directory / "base-hf", layout="transformers")
    export(directory / "adapter", directory / "adapter-hf", layout="transformers")
    export(directory / "adapter", directory / "merged-hf", merge=True, layout="transformers")
    return directory


def ours(exported):
    return logits_of(open_adapter(load_model(exported / "base"), exported / "adapter"), IDS)


def test_an_adapter_loads_in_stock_peft_on_the_exported_base(exported):
    """Every linear module adapted; the logits of base + adapter here."""
    stock = opened_by_stock_transformers(
        exported / "base-hf", IDS, None, exported / "adapter-hf"
    ).logits
    found = difference(ours(exported), stock)
    assert found.max_abs < 2e-5
    assert found.greedy_agreement == 1.0
    bare = opened_by_stock_transformers(exported / "base-hf", IDS, None).logits
    assert difference(bare, stock).max_abs > 1e-2


def test_a_merged_model_loads_in_stock_transformers(exported, plain_proofs):
    """The same logits, and nothing of PEFT."""
    stock = opened_by_stock_transformers(exported / "merged-hf", IDS, None).logits
    assert difference(ours(exported), stock).max_abs < 1e-4


def test_an_adapter_of_a_base_in_transformers_layout_is_proven_by_stock_peft(
    exported, tmp_path, plain_proofs
):
    """The proof of the export itself runs without glmforge then."""
    report = export(exported / "adapter-hf", tmp_path / "again", base=exported / "base-hf")
    assert "by stock transformers and PEFT alone" in report.lines()[1]
    assert report.reopened.max_abs < 2e-5


def test_written_weights_that_answer_otherwise_leave_nothing(exported, tmp_path, monkeypatch):
    """Beyond the bound the export fails, and no directory looks finished."""
    from glmforge.export import merge

    def other(*arguments, **named):
        return [row + 1.0 for row in merge.logits_of(load_model(arguments[0]), IDS)]

    monkeypatch.setattr(merge, "dialogue_prompts", lambda tokenizer: [([], row) for row in IDS])
    monkeypatch.setattr(merge, "logits_in_fresh_process", other)
    with pytest.raises(ExportError, match=r"answers differently: .*Nothing was written"):
        export(exported / "adapter", tmp_path / "out", merge=True)
    assert list(tmp_path.iterdir()) == []
