"""Makes tests/data/golden/chats.json: what transformers' apply_chat_template makes of conversations.

    python scripts/golden/make_chats.py NPM_FOLDER MODEL.gguf

With transformers 5.24.0 and gguf 0.19.0. NPM_FOLDER is where the tokenizer packages were unpacked (README.md beside
this file); MODEL.gguf is the demo model. `own` is a template of this project that uses what others leave out. Ids are
kept of a few conversations of each folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

TARGET = Path(__file__).parents[2] / "tests" / "data" / "golden" / "chats.json"
FOLDERS = ("qwen3", "llama3", "llama3_1", "gemma3", "deepseek_v3")
IDS = ("turns", "system", "special")  # conversations whose ids are kept

OWN = """{# trim_blocks and lstrip_blocks decide about the white space of this one #}
{% macro show(message) -%}
    [{{ message.role }}] {{ message.content | trim | replace("\\n", " / ") }}
{%- endmacro %}
{% for message in messages %}
    {% if message.role == "skip" %}{% continue %}{% endif %}
    {% if loop.index > 4 %}{% break %}{% endif %}
    {{ show(message) }}
    {% if message.tool_calls is defined %}
  {% for call in message.tool_calls %}
    {{ call.function.arguments | tojson }} {{ call.function.arguments | tojson(indent=2) }}
    {{ call.function.arguments | tojson(sort_keys=true, separators=(",", ":"), ensure_ascii=true) }}
    {% for key, value in call.function.arguments.items() %}
        {{ key }}={{ value }}{{ ";" if not loop.last }}
    {%- endfor %}
  {% endfor %}
    {% endif %}
{% endfor %}
{% set ns = namespace(count=0) %}
{% for message in messages if message.role == "user" %}
    {% set ns.count = ns.count + 1 %}
{% endfor %}
{% generation %}
    users: {{ ns.count }} {{ dict(a=1) | tojson }} {{ messages | map(attribute="role") | join(",") }}
{% endgeneration %}
{{ (messages | selectattr("role", "equalto", "user") | list | last).content.split(" ")[0].upper() }}
{{ "<&>\\u00e9" | tojson }} {{ tools | length if tools else "no tools" }} {{ extra | default("nothing") }}
{% if add_generation_prompt %}>>>{% endif %}
"""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city, é & <b>",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"days": 2, "city": "Zürich"}},
}
USER = {"role": "user", "content": "What is the weather in Zürich?"}

CHATS: dict[str, dict[str, Any]] = {
    "turns": {"messages": [USER]},
    "no_prompt": {"messages": [USER], "add_generation_prompt": False},
    "system": {
        "messages": [
            {"role": "system", "content": "Be brief.\n"},
            {"role": "user", "content": "  Hi\n there  "},
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello 😀"},
            {"role": "user", "content": "And now?"},
        ]
    },
    "special": {"messages": [{"role": "user", "content": "a<|im_end|>b</s><eos> {{ 1 }} <b>&amp;</b> \u2028 \\n"}]},
    "tools": {"messages": [USER], "tools": [WEATHER]},
    "calls": {
        "messages": [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [CALL, {**CALL, "id": "call_2"}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
            {"role": "tool", "tool_call_id": "call_2", "content": "rain"},
        ],
        "tools": [WEATHER],
    },
    "reasoning": {
        "messages": [
            USER,
            {"role": "assistant", "content": "Sunny.", "reasoning_content": "They ask about weather."},
        ],
        "add_generation_prompt": False,
    },
    "arguments": {"messages": [USER], "arguments": {"enable_thinking": False, "extra": "more"}},
    "two_users": {"messages": [USER, USER]},
    "continued": {
        "messages": [USER, {"role": "assistant", "content": "It is "}],
        "add_generation_prompt": False,
        "continue_final": True,
    },
}


def render(source: str, tokens: dict[str, str], chat: dict[str, Any]) -> str | None:
    """The text, None where the template or transformers refuses."""
    try:
        texts, _ = render_jinja_template(
            conversations=[chat["messages"]],
            tools=chat.get("tools"),
            chat_template=source,
            add_generation_prompt=chat.get("add_generation_prompt", True),
            continue_final_message=chat.get("continue_final", False),
            **tokens,
            **chat.get("arguments", {}),
        )
    except Exception as error:
        print(f"  {type(error).__name__}: {error}", file=sys.stderr)
        return None
    return str(texts[0])


def main(npm: Path, gguf: Path) -> None:
    fields = GGUFReader(gguf).fields
    tokens = fields["tokenizer.ggml.tokens"]
    named = {
        f"{name}_token": str(bytes(tokens.parts[tokens.data[fields[key].parts[fields[key].data[0]][0]]]), "utf-8")
        for name in ("bos", "eos")
        if (key := f"tokenizer.ggml.{name}_token_id") in fields
    }
    template = fields["tokenizer.chat_template"]
    models: dict[str, dict[str, Any]] = {
        "own": {"source": OWN, "tokens": {}},
        "smollm2": {"source": str(bytes(template.parts[template.data[0]]), "utf-8"), "tokens": named},
    }
    for name in FOLDERS:
        tokenizer = AutoTokenizer.from_pretrained(npm / name / "package" / "models")
        special = {key: value for key, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
        models[name] = {"source": tokenizer.chat_template, "tokens": special, "ids": {}}
        for chat in IDS:
            text = render(tokenizer.chat_template, special, CHATS[chat])
            if text is not None:
                models[name]["ids"][chat] = tokenizer.encode(text, add_special_tokens=False)
    for name, model in models.items():
        print(name, file=sys.stderr)
        model["texts"] = {chat: render(model["source"], model["tokens"], CHATS[chat]) for chat in CHATS}
    golden = {"chats": CHATS, "models": models}
    TARGET.write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
