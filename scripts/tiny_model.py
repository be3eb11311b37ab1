"""Writes the smallest model that vLLM serves into a folder: a llama of two layers whose weights vLLM draws (`--load-format dummy`).

What it says is noise, and a token costs next to nothing, so that what is seen is scheduling. It needs the package `tokenizers`.
"""

import json
import string
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCABULARY = 512
CONTEXT = 8192
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"


def write(folder: Path) -> None:
    """Makes the model there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    letters = ["<unk>", "<s>", "</s>", *string.printable]
    vocabulary = {token: number for number, token in enumerate([*letters, *(f"w{i}" for i in range(VOCABULARY - len(letters)))])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=letters[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told | {"chat_template": TEMPLATE}), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
