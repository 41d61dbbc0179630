"""A tiny project on disk, and ways to run the program in it; shared by the tests of this folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

CONFIG_JSON = {
    "_name_or_path": "THUDM/chatglm3-6b",
    "model_type": "chatglm",
    "architectures": ["ChatGLMModel"],
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "ffn_hidden_size": 64,
    "hidden_size": 32,
    "kv_channels": 16,
    "layernorm_epsilon": 1e-05,
    "multi_query_attention": True,
    "multi_query_group_num": 1,
    "num_attention_heads": 2,
    "num_layers": 2,
    "original_rope": True,
    "padded_vocab_size": 1024,
    "post_layer_norm": True,
    "rmsnorm": True,
    "seq_length": 512,
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
BIN = Path(sys.executable).parent


def dialogues() -> list[dict[str, object]]:
    """Sixteen short dialogues."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"question {number} about parcel {number * 7}"},
                {"role": "assistant", "content": f"parcel {number * 7} arrives on day {number}"},
            ]
        }
        for number in range(16)
    ]


class Project:
    """A working directory with a config `c.yaml`, in which commands run as a user's would."""

    def __init__(self, directory: Path, settings: dict[str, dict[str, object]]) -> None:
        self.directory = directory
        self.settings = settings
        self.write()

    def write(self) -> None:
        text = yaml.safe_dump(self.settings, sort_keys=False)
        (self.directory / "c.yaml").write_text(text, encoding="utf-8")

    def start(
        self, *command: str, stdin: int | None = None, **variables: str
    ) -> subprocess.Popen[str]:
        """Start a command without waiting for it; `glmforge` is this environment's."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in LAUNCHER_VARIABLES and not name.startswith("SLURM_")
        }
        path = f"{BIN}{os.pathsep}{inherited.get('PATH', '')}"
        return subprocess.Popen(
            command,
            cwd=self.directory,
            env=inherited | {"OMP_NUM_THREADS": "1", "PATH": path} | variables,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        process = self.start(*command, **variables)
        try:
            out, err = process.communicate(timeout=240)
        finally:
            process.kill()
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def files(self) -> set[str]:
        """Every file under the working directory."""
        found = (path for path in self.directory.rglob("*") if path.is_file())
        return {str(path.relative_to(self.directory)) for path in found}

    def steps(self) -> list[dict[str, object]]:
        """The train lines of the run's metrics."""
        lines = (self.directory / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [row for row in map(json.loads, lines) if row["kind"] == "train"]
