"""What the text and the shape of a request hint at about the length of its answer, cheap enough for every request.

Only a trained model reads these. The words of the beginning and the end of the text are looked up in short lists: what is to be
written is mostly said there. All of it is bytes and sets, and takes about ten microseconds however long the text is. Words are
English ones; of other languages only the shape of the text is seen.
"""

import math
import re

HEAD, TAIL = 400, 200  # characters that are looked at

_WORDS = {
    "code": "code function python javascript typescript java c sql html css script program class api regex implement bug error",
    "prose": "essay story article blog poem letter email speech chapter novel report roleplay character",
    "list": "list enumerate bullet table steps ideas examples ways tips outline plan",
    "brief": "brief briefly short concise shortly one single only tl dr tldr",
    "detailed": "detailed detail comprehensive long thorough elaborate depth full complete",
    "edit": "translate rewrite rephrase correct proofread edit paraphrase fix grammar",
    "choice": "yes no true false classify choose which label multiple option category sentiment",
    "summary": "summarize summarise summary tldr abstract key points",
    "explain": "explain describe why how compare discuss analyze analyse",
    "markup": "json yaml csv xml schema format tool",
    "fact": "what who when where name",
    "continue": "continue go next more",
    "maths": "calculate solve many much equation proof sum total cost each",
}
_KINDS = [frozenset(words.encode().split()) for words in _WORDS.values()]
_LENGTHS = {b"word": 1.3, b"sentence": 25.0, b"line": 15.0, b"paragraph": 120.0, b"page": 600.0}  # tokens of each, roughly
_WANTED = re.compile(rb"(\d{1,5})[ -]?(word|sentence|line|paragraph|page|item|idea|example|tip|way|reason|question|point|step)")
_ITEM_TOKENS = 40.0
_LETTERS = bytes(byte if chr(byte).isalnum() and byte < 0x80 else 0x20 for byte in range(0x100))

NAMES = ("turns", "last", "tools", "format", "characters", "newlines", "commas", "digits", "foreign", "asks", "fence", "wanted", *_WORDS)


def of(text: str, *, turns: int = 0, last_tokens: int = 0, tools: int = 0, is_formatted: bool = False) -> tuple[float, ...]:
    """The hints of a request, in the order of `NAMES`.

    `text` is what the user said last, `turns` the answers before it in the conversation, `last_tokens` the size of that text,
    `tools` how many are offered; `is_formatted`: whether a response format is demanded.
    """
    seen = text if len(text) <= HEAD + TAIL else f"{text[:HEAD]} {text[-TAIL:]}"
    raw = seen.encode("utf-8", "replace").lower()
    words = set(raw.translate(_LETTERS).split())
    wanted = _WANTED.search(raw)
    return (
        float(turns),
        math.log2(1 + last_tokens),
        float(tools),
        float(is_formatted),
        math.log2(1 + len(text)),
        float(raw.count(b"\n")),
        float(raw.count(b",")),
        float(len(raw) - len(raw.translate(None, b"0123456789"))),
        (len(raw) - len(seen)) / len(raw) if raw else 0.0,
        float(raw.rstrip().endswith(b"?")),
        float(b"```" in raw or b"{" in raw),
        math.log2(1.0 + int(wanted[1]) * _LENGTHS.get(wanted[2], _ITEM_TOKENS)) if wanted else 0.0,
        *[float(not kind.isdisjoint(words)) for kind in _KINDS],
    )
