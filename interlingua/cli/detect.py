"""`interlingua detect-watermark`: was this text generated with `watermark: true`?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson

from interlingua.cli import assemble
from interlingua.cli.options import Options
from interlingua.cli.settings import UsageError
from interlingua.text.tokenizer import Tokenizer

# Where the routes' answers hold token ids, and where their text.
_IDS = (("details", "tokens"), ("details", "perf_stat"), ("details", "generated_token_ids"), ("output0",))
_TEXTS = (
    ("generated_text",),
    ("text_output",),
    ("text_output", 0),
    ("choices", 0, "message", "content"),
    ("choices", 0, "text"),
    ("text", 0),
    ("text",),
)
# Where the events of a stream hold theirs: some the next piece, some all of the text so far.
_EVENT_IDS = (("token", "id"), ("details", "perf_stat"))
_EVENT_PIECES = (("text_output",), ("text",), ("delta", "content"))
_EVENT_TEXTS = (("generated_text",), ("text", 0))


def run(options: Options, file: str) -> int:
    from interlingua.engine.native.load import read_config
    from interlingua.engine.native.watermark import THRESHOLD, detect

    content = _read(file)
    files = assemble.find(options)
    tokenizer, vocab = Tokenizer.load(files), read_config(files).vocab
    try:
        ids = ids_of(content, tokenizer)
    except ValueError as problem:
        raise UsageError(f"{file}: {problem}") from None
    wrong = next((token for token in ids if not 0 <= token < vocab), None)
    if wrong is not None:
        raise UsageError(f"{file}: holds the id {wrong}; {files.name} has ids from 0 to {vocab - 1}")
    if len(ids) < 2:
        raise UsageError(f"{file}: a watermark shows in two tokens or more, got {len(ids)}")
    found = detect(ids, vocab, options.watermark_gamma)
    share = found.green / found.scored
    print(f"pairs     {found.scored}")
    print(f"green     {found.green} ({share:.1%}, by chance {found.gamma:.1%})")
    print(f"z         {found.z:.4f}")
    print(f"p-value   {found.p_value:.3g}")
    print(f"verdict   {'watermarked' if found.watermarked else 'no watermark seen'} (z over {THRESHOLD:g} is one)")
    return 0


def ids_of(content: str, tokenizer: Tokenizer) -> list[int]:
    """The token ids in a text, a JSON list of ids, a saved answer or a saved stream; a BOS in front is left out.

    Of several answers, the first counts. Raises ValueError for a stream without a token.
    """
    events = _events(content)
    ids = _of_answer(content, tokenizer) if events is None else _of_stream(events, tokenizer)
    return ids[1:] if ids and ids[0] == tokenizer.bos_id else ids


def _of_answer(content: str, tokenizer: Tokenizer) -> list[int]:
    document = _json(content)
    if isinstance(document, list) and len(document) == 1 and isinstance(document[0], dict):
        document = document[0]  # TGI's root route answers with a list of one
    outputs = _at(document, ("outputs",))
    if isinstance(outputs, list):  # tensors of KServe's infer, by their names
        document = {str(_at(output, ("name",))): _at(output, ("data",)) for output in outputs}
    found = (ids for ids in map(_ids, (document, *(_at(document, path) for path in _IDS))) if ids)
    texts = (text for text in (_at(document, path) for path in _TEXTS) if isinstance(text, str))
    return next(found, None) or tokenizer.encode(next(texts, content), add_special=False)


def _events(content: str) -> list[dict[str, Any]] | None:
    """The events of a saved stream: of `data:` lines, or JSON objects on lines or between NULs. None: it is none."""
    if content.lstrip().startswith("data:"):
        lines = (line.strip() for line in content.splitlines())
        texts = [line.removeprefix("data:") for line in lines if line.startswith("data:")]
        return [event for event in map(_json, texts) if isinstance(event, dict)]  # the last may be [DONE], or cut off
    objects = [_json(piece) for piece in content.replace("\0", "\n").split("\n") if piece.strip()]
    if len(objects) < 2 or not all(
        isinstance(event, dict) and ("text" in event or "error" in event) for event in objects
    ):
        return None
    return objects


def _of_stream(events: list[dict[str, Any]], tokenizer: Tokenizer) -> list[int]:
    ids: list[int] = []
    pieces: list[str] = []
    whole = None
    for event in events:
        for path in _EVENT_IDS:
            value = _at(event, path)
            ids += _ids(value if isinstance(value, list) else [value])
        choices = event.get("choices")
        firsts = [one for one in choices if _at(one, ("index",)) == 0] if isinstance(choices, list) else []
        found = [_at(part, path) for part in (event, *firsts) for path in _EVENT_PIECES]
        pieces += [piece for piece in found if isinstance(piece, str)]
        whole = next((text for path in _EVENT_TEXTS if isinstance(text := _at(event, path), str)), whole)
    text = whole if whole is not None else "".join(pieces)
    if not ids and not text:
        error = next((f": {event['error']}" for event in events if "error" in event), "")
        raise ValueError(f"a saved stream in which no event holds a token or a text{error}")
    return ids or tokenizer.encode(text, add_special=False)


def _json(text: str) -> Any:
    """The document, or None if it is not JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _ids(value: object) -> list[int]:
    """Ids of a list of numbers, of tokens or of rows that begin with an id; empty if it is none of these."""
    ids: list[int] = []
    for item in value if isinstance(value, list) else ():
        token = item.get("id") if isinstance(item, dict) else item[0] if isinstance(item, list) and item else item
        if not isinstance(token, int) or isinstance(token, bool):
            return []
        ids.append(token)
    return ids


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "is not UTF-8"
        raise UsageError(f"{file}: {reason}") from None
