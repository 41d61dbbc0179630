"""From a name to a directory: a path, a copy in a cache, a download; never a file of code."""

import shutil
import socket
from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from vocabularies import write_bpe

from glmforge.errors import ModelError
from glmforge.models import load_config, load_model, load_tokenizer


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """No network, and an empty cache of Hugging Face in this folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MODELSCOPE_CACHE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = tmp_path / "hf"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    return folder


class TestNames:
    def test_a_missing_directory_is_named(self, tmp_path):
        with pytest.raises(ModelError, match="no such directory"):
            load_config(tmp_path / "nothing")

    def test_a_file_is_no_directory(self, directory):
        with pytest.raises(ModelError, match="a file; give the directory"):
            load_config(directory / "config.json")

    @pytest.mark.parametrize(
        ("variable", "place"),
        [
            ("HOME", ".cache/modelscope/hub/models/ZhipuAI"),
            ("HOME", ".cache/modelscope/hub/ZhipuAI"),
            ("HOME", ".cache/modelscope/models/ZhipuAI"),
            ("MODELSCOPE_CACHE", "models/ZhipuAI"),
            ("MODELSCOPE_CACHE", "hub/ZhipuAI"),
            ("MODELSCOPE_CACHE", "ZhipuAI"),
        ],
    )
    def test_a_hub_id_is_found_in_the_modelscope_cache(
        self, directory, tmp_path, monkeypatch, variable, place
    ):
        monkeypatch.delenv("MODELSCOPE_CACHE", raising=False)
        monkeypatch.setenv(variable, str(tmp_path / "there"))
        cached = tmp_path / "there" / place / "chatglm3-6b"
        shutil.copytree(directory, cached)
        assert load_config("ZhipuAI/chatglm3-6b").family == "chatglm3"
        write_bpe(cached)
        assert load_tokenizer("ZhipuAI/chatglm3-6b").family == "chatglm3"

    def test_a_tokenizer_is_downloaded_without_weights_and_nothing_with_code(
        self, directory, monkeypatch
    ):
        asked = []

        def download(hub_id, *, allow_patterns=(), ignore_patterns=(), local_files_only=False):
            if local_files_only:
                raise LocalEntryNotFoundError("nothing here")
            asked.append((hub_id, allow_patterns, ignore_patterns))
            return str(write_bpe(directory))

        monkeypatch.setattr("huggingface_hub.snapshot_download", download)
        load_tokenizer("someone/a-model")
        load_model("someone/a-model")
        (small, refused), (whole, _) = [(allow, ignore) for _, allow, ignore in asked]
        assert "tokenizer.model" in small
        assert not {"*.safetensors", "*.bin"} & set(small)
        assert {"*.safetensors", "*.bin"} <= set(whole)
        assert "*.py" in refused
        assert not any(pattern.endswith(".py") for pattern in whole)

    def test_without_a_network_the_error_gives_both_commands(self, tmp_path, monkeypatch):
        def unreachable(*_: object, **__: object) -> None:
            raise OSError("no route to host")

        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setattr(socket, "getaddrinfo", unreachable)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(ModelError) as error:
            load_config("someone/no-such-model")
        assert 'hf download someone/no-such-model --exclude "*.py"' in str(error.value)
        assert "modelscope download --model someone/no-such-model" in str(error.value)

    def test_a_modelscope_folder_that_is_not_whole_does_not_hide_the_other_cache(
        self, directory, tmp_path, monkeypatch, offline
    ):
        self.cache(directory, offline, "THUDM/both")
        monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "ms"))
        other = tmp_path / "ms" / "models" / "THUDM" / "both"
        other.mkdir(parents=True)
        shutil.copy(directory / "config.json", other)
        assert load_model("THUDM/both").config.family == "chatglm3"

    @pytest.mark.parametrize("lost", ["model.safetensors", "config.json"])
    def test_a_cache_that_is_not_whole_gives_both_commands_offline(self, directory, offline, lost):
        self.cache(directory, offline, "THUDM/partial").joinpath(lost).unlink()
        with pytest.raises(ModelError, match="THUDM/partial: not whole in") as error:
            load_model("THUDM/partial")
        assert "hf download THUDM/partial" in str(error.value)
        assert "modelscope download --model THUDM/partial" in str(error.value)

    def cache(self, directory, folder, hub_id):
        """Lay a model into a cache of Hugging Face."""
        repo = folder / f"models--{hub_id.replace('/', '--')}"
        (repo / "refs").mkdir(parents=True)
        (repo / "refs" / "main").write_text("abc", encoding="utf-8")
        return Path(shutil.copytree(directory, repo / "snapshots" / "abc"))
