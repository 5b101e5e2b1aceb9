"""Counts tokens for servers that do not."""

from collections.abc import Callable
from pathlib import Path

from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.machine import version_of


def token_counter(path: Path) -> Callable[[str], int]:
    """Tokens of a text, special ones left out, by a ``tokenizer.json`` or the folder that holds one.

    Raises ConfigError for a file that is no tokenizer, or without the package that reads it.
    """
    if version_of("tokenizers") is None:
        raise ConfigError("--tokenizer needs the package tokenizers; install it, or leave the option out")
    from tokenizers import Tokenizer

    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"--tokenizer: {file} does not exist; expected a tokenizer.json or the folder that holds one")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the package raises a bare Exception
        raise ConfigError(f"--tokenizer: {file} is no tokenizer.json: {error}") from None
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
