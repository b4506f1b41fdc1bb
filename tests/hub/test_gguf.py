"""The GGUF reader against the gguf package's own reader and writer, and against broken files."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from interlingua.contract.errors import ModelError
from interlingua.hub.files import ModelFiles
from interlingua.hub.gguf import GGML_TYPES, GgufFile

Write = Callable[[gguf.GGUFWriter], None]


def written(path: Path, fill: Write, **options: Any) -> Path:
    """A file made by the gguf package."""
    writer = gguf.GGUFWriter(path, "llama", **options)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def fill_small(writer: gguf.GGUFWriter) -> None:
    writer.add_uint32("llama.block_count", 2)
    writer.add_token_list(["<s>", "", "Ġé", "日本"])
    writer.add_token_scores([0.0, -1.5, 2.0, 1e-9])
    writer.add_tensor("token_embd.weight", np.arange(4 * 32, dtype=np.float32).reshape(4, 32))
    blocks = gguf.quants.quantize(
        np.linspace(-1, 1, 3 * 64, dtype=np.float32).reshape(3, 64), gguf.GGMLQuantizationType.Q8_0
    )
    writer.add_tensor("blk.0.ffn_up.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return written(tmp_path / "small.gguf", fill_small)


def assert_same(path: Path) -> None:
    """Every pair and every tensor as the gguf package reads them."""
    ours, theirs = GgufFile(path), gguf.GGUFReader(path)
    fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    for key, field in fields.items():
        value, expected = ours.metadata[key], field.contents()
        if isinstance(value, np.ndarray):
            value = value.tolist()
        assert value == expected, key
        assert type(value) is type(expected), key
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        assert (mine.type.name, mine.offset, mine.nbytes) == (
            tensor.tensor_type.name,
            tensor.data_offset,
            tensor.n_bytes,
        )
        assert mine.data.shape == tensor.data.shape or mine.type.name == "BF16"
        assert mine.data.tobytes() == tensor.data.tobytes(), tensor.name
        assert not mine.data.flags.writeable


def test_demo_model(demo_files: ModelFiles) -> None:
    assert_same(demo_files.paths[0])


def test_demo_model_opens_fast(demo_files: ModelFiles) -> None:
    """Its two lists of 50,000 strings are not decoded."""

    def seconds() -> float:
        start = time.perf_counter()
        GgufFile(demo_files.paths[0])
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) < 3, "0.014 s on a machine that does nothing else"


def test_views_outlive_the_file_object(small: Path) -> None:
    data = GgufFile(small).tensors["token_embd.weight"].data
    assert data.sum() == 127 * 64


def test_small_file(small: Path) -> None:
    assert_same(small)
    file = GgufFile(small)
    assert file.architecture == "llama"
    assert file.tensors["token_embd.weight"].data[3, 31] == 127


def test_every_kind_of_value(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_uint8("u8", 255)
        writer.add_int8("i8", -128)
        writer.add_uint16("u16", 65535)
        writer.add_int16("i16", -32768)
        writer.add_uint32("u32", 2**32 - 1)
        writer.add_int32("i32", -(2**31))
        writer.add_uint64("u64", 2**64 - 1)
        writer.add_int64("i64", -(2**63))
        writer.add_float32("f32", 0.5)
        writer.add_float64("f64", 0.1)
        writer.add_bool("yes", True)
        writer.add_bool("no", False)
        writer.add_string("text", "é \n 日本 😀")
        writer.add_array("ints", [1, -2, 3])
        writer.add_array("floats", [0.5, -1.25])
        writer.add_array("bools", [True, False])
        writer.add_array("texts", ["a", "", "ß"])

    path = written(tmp_path / "kinds.gguf", fill)
    assert_same(path)
    metadata = GgufFile(path).metadata
    assert "u8" in metadata
    assert "nothing" not in metadata
    assert metadata.get("nothing") is None
    with pytest.raises(KeyError):
        metadata["nothing"]


@pytest.mark.parametrize("alignment", [8, 32, 256])
def test_alignment(tmp_path: Path, alignment: int) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_custom_alignment(alignment)
        for index in range(3):
            writer.add_tensor(f"t{index}", np.full(index + 1, index, np.float16))

    assert_same(written(tmp_path / "aligned.gguf", fill))


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16"])
def test_tensor_types(tmp_path: Path, name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    values = np.random.default_rng(1).standard_normal((2, 3, 256)).astype(np.float32)

    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("t", gguf.quants.quantize(values, kind), raw_dtype=kind)

    path = written(tmp_path / "types.gguf", fill)
    assert_same(path)
    assert GgufFile(path).tensors["t"].shape == (2, 3, 256)


def test_type_table() -> None:
    """Block and byte sizes as in the gguf package, for every type that both know."""
    known = 0
    for index, kind in GGML_TYPES.items():
        try:
            theirs = gguf.GGMLQuantizationType(index)
        except ValueError:
            continue
        assert kind.name == theirs.name
        assert (kind.block, kind.bytes) == gguf.GGML_QUANT_SIZES[theirs]
        known += 1
    assert known == len(GGML_TYPES)


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def header(tensors: int = 0, pairs: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)


def tensor(name: bytes, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


BROKEN = {
    "empty": (b"", "is empty"),
    "other": (b"PK\x03\x04" + b"\0" * 40, "not a GGUF file"),
    "version 1": (header(version=1), "version 1 of GGUF"),
    "version 4": (header(version=4), "version 4 of GGUF"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "magic only": (b"GGUF", "cut short"),
    "no header": (b"GGUF\x03\0\0\0", "cut short"),
    "pairs missing": (header(pairs=2), "cut short"),
    "countless pairs": (header(pairs=2**63), "cut short"),
    "countless tensors": (header(tensors=2**63), "cut short"),
    "long key": (header(pairs=1) + struct.pack("<Q", 2**63), "cut short"),
    "key no text": (header(pairs=1) + string(b"\xff") + struct.pack("<II", 4, 1), "not valid UTF-8"),
    "key twice": (header(pairs=2) + (string(b"k") + struct.pack("<II", 4, 1)) * 2, "k stands twice"),
    "unknown type": (header(pairs=1) + string(b"k") + struct.pack("<II", 77, 1), "value type 77"),
    "nested": (header(pairs=1) + string(b"k") + struct.pack("<IIQ", 9, 9, 1), "array of arrays"),
    "long array": (header(pairs=1) + string(b"k") + struct.pack("<IIQ", 9, 5, 2**40), "cut short"),
    "long strings": (header(pairs=1) + string(b"k") + struct.pack("<IIQ", 9, 8, 2**40), "cut short"),
    "string too long": (header(pairs=1) + string(b"k") + struct.pack("<IIQQ", 9, 8, 1, 2**64 - 1), "cut short"),
    "five dims": (header(tensors=1) + tensor(b"t", (1, 1, 1, 1, 1), 0, 0), "5 dimensions"),
    "tensor type": (header(tensors=1) + tensor(b"t", (32,), 200, 0), "ggml type 200"),
    "past the end": (header(tensors=1) + tensor(b"t", (32,), 0, 0) + b"\0" * 64, "tensor t would end"),
    "huge": (header(tensors=1) + tensor(b"t", (2**60, 2**60), 0, 0), "tensor t would end"),
    "odd offset": (header(tensors=1) + tensor(b"t", (1,), 0, 4) + b"\0" * 64, "not aligned"),
    "half block": (header(tensors=1) + tensor(b"t", (33,), 2, 0) + b"\0" * 64, "blocks of 32"),
    "tensor twice": (header(tensors=2) + tensor(b"t", (1,), 0, 0) * 2 + b"\0" * 64, "tensor t stands twice"),
    "alignment": (header(pairs=1) + string(b"general.alignment") + struct.pack("<II", 4, 12), "alignment is 12"),
}


@pytest.mark.parametrize(("content", "problem"), BROKEN.values(), ids=BROKEN)
def test_broken_files_say_what_is_wrong(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError) as raised:
        GgufFile(path)
    assert problem in raised.value.message
    assert str(path) in raised.value.message
    assert "\n" not in raised.value.message


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelError, match="cannot be read"):
            GgufFile(path)


def test_version_2(small: Path) -> None:
    content = small.read_bytes()
    small.write_bytes(content[:4] + struct.pack("<I", 2) + content[8:])
    file = GgufFile(small)
    assert file.version == 2
    assert len(file.tensors) == 2


def test_big_endian(tmp_path: Path) -> None:
    path = written(tmp_path / "big.gguf", fill_small, endianess=gguf.GGUFEndian.BIG)
    with pytest.raises(ModelError, match="big-endian"):
        GgufFile(path)


def test_cut_anywhere(small: Path, tmp_path: Path) -> None:
    """All of the file is needed but for the padding behind its last tensor."""
    content = small.read_bytes()
    end = max(tensor.offset + tensor.nbytes for tensor in GgufFile(small).tensors.values())
    cut = tmp_path / "cut.gguf"
    for size in range(1, end):
        cut.write_bytes(content[:size])
        with pytest.raises(ModelError):
            GgufFile(cut)
    cut.write_bytes(content[:end])
    assert len(GgufFile(cut).tensors) == 2


def test_corrupt_anywhere(small: Path, tmp_path: Path) -> None:
    """A file with wrong bytes is refused, or every value and every tensor of it can be read: nothing else happens."""
    content = small.read_bytes()
    draw = random.Random(7)
    path = tmp_path / "corrupt.gguf"
    refused = 0
    for _ in range(1500):
        broken = bytearray(content)
        for _ in range(draw.choice((1, 1, 2, 8))):
            broken[draw.randrange(4, 600)] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        path.write_bytes(broken)
        try:
            file = GgufFile(path)
            for key in file.metadata:
                file.metadata[key]
            for tensor in file.tensors.values():
                tensor.data.tobytes()
        except ModelError as error:
            assert "\n" not in error.message
            refused += 1
    assert refused > 100
