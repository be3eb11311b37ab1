"""How large the prompt of a request is, whatever legal shape it has.

Text is gathered and measured once. What is not text (images, audio, files, parts of a type that is not known here)
counts a bounded amount, however many bytes carry it. Shapes that no limit depends on are not judged: the engine will.
The number of pieces is bounded, so that no body of legal size keeps the event loop for long.
"""

from collections.abc import Mapping

import orjson

from fairlane.errors import Reason, Refused
from fairlane.predict.estimate import PromptSize

PROMPTS_MAX = 2048  # in one request: OpenAI's bound
PIECES_MAX = 20_000  # messages, parts and tool calls of one chat: walking over them takes about 10 ms
MESSAGE_CHARACTERS = 16  # a chat template's role and markers cost about four tokens a message
IMAGE_TOKENS = 1024
IMAGE_LOW_TOKENS = 85  # `detail: low`
AUDIO_TOKENS = 1024
FILE_TOKENS = 4096
UNKNOWN_TOKENS = 1024

_IMAGES = frozenset({"image_url", "input_image", "image", "image_pil", "image_embeds"})
_MEDIA = {
    **dict.fromkeys(_IMAGES, IMAGE_TOKENS),
    **dict.fromkeys(("input_audio", "audio_url", "audio", "audio_embeds"), AUDIO_TOKENS),
    **dict.fromkeys(("file", "input_file", "document", "video", "video_url"), FILE_TOKENS),
}
_DEFINITIONS = frozenset({"tools", "functions", "response_format"})
_PLAIN_MEMBERS = 2  # a message of that many holds a role and a content and nothing else
_MUST_BE = "must be a non-empty list of objects"

Fields = Mapping[str, object]


def wrong(param: str, what: str) -> Refused:
    """The refusal of a parameter; `what` ends the sentence that its name begins."""
    return Refused(Reason.INVALID_REQUEST, f"'{param}' {what}.", param=param)


def of_chat(fields: Fields) -> tuple[PromptSize, int]:
    """The size of a chat with its tool definitions, and 1: the number of prompts."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise wrong("messages", _MUST_BE)
    if len(messages) > PIECES_MAX:
        raise _too_many()
    texts: list[str] = []
    others: list[Fields] = []  # what is more than a role and a text
    for message in messages:
        if type(message) is dict and len(message) <= _PLAIN_MEMBERS and type(content := message.get("content")) is str:
            texts.append(content)
        else:
            others.append(message)
    extra = _walk(others, texts, len(messages)) if others else 0
    if not _DEFINITIONS.isdisjoint(fields):
        texts += [_written(fields[name]) for name in _DEFINITIONS if fields.get(name)]
    return PromptSize.of("".join(texts), markup=MESSAGE_CHARACTERS * len(messages), extra=extra), 1


def of_completions(fields: Fields) -> tuple[PromptSize, int]:
    """The size and the number of prompts of a completion."""
    return _of_prompts(fields, "prompt")


def of_embeddings(fields: Fields) -> tuple[PromptSize, int]:
    """The size and the number of texts to embed."""
    return _of_prompts(fields, "input")


def _of_prompts(fields: Fields, name: str) -> tuple[PromptSize, int]:
    value = fields.get(name)
    if isinstance(value, str):
        return PromptSize.of(value), 1
    if isinstance(value, list):
        kinds = set(map(type, value))
        if kinds == {int}:
            return PromptSize(0, ids=len(value)), 1
        if kinds in ({str}, {list}) and len(value) > PROMPTS_MAX:
            raise wrong(name, f"must hold at most {PROMPTS_MAX} prompts")
        if kinds == {str}:
            return PromptSize.of("".join(value)), len(value)
        if kinds == {list} and all(set(map(type, ids)) == {int} for ids in value):
            return PromptSize(0, ids=sum(map(len, value))), len(value)
    raise wrong(name, "must be a string, a list of strings, a list of token ids or a list of such lists")


def _too_many() -> Refused:
    return wrong("messages", f"must hold at most {PIECES_MAX} messages, parts and tool calls")


def _walk(others: list[Fields], texts: list[str], pieces: int) -> int:
    """Add the texts of the messages that are not plain, of so many in all; returns the tokens of what is not text."""
    if set(map(type, others)) != {dict}:
        raise wrong("messages", _MUST_BE)
    walk = _Walk(texts, pieces)
    for message in others:
        walk.message(message)
    return walk.extra


class _Walk:
    """Gathers the texts of messages of any shape, and the tokens of what is not text."""

    __slots__ = ("extra", "pieces", "texts")

    def __init__(self, texts: list[str], pieces: int) -> None:
        self.texts = texts
        self.extra = 0
        self.pieces = pieces

    def _count(self, pieces: int) -> None:
        """Refuse more pieces than one walk may take, before it takes them."""
        self.pieces += pieces
        if self.pieces > PIECES_MAX:
            raise _too_many()

    def message(self, message: Fields) -> None:
        """Take a message."""
        content = message.get("content")
        if isinstance(content, str):
            self.texts.append(content)
        elif isinstance(content, list):
            self._parts(content)
        elif content is not None:
            self.texts.append(_written(content))
        if len(message) > _PLAIN_MEMBERS:
            self._calls(message)

    def _parts(self, content: list[object]) -> None:
        self._count(len(content))
        for part in content:
            if isinstance(part, str):
                self.texts.append(part)
            elif isinstance(part, dict):
                self._part(part)
            else:
                self.extra += UNKNOWN_TOKENS

    def _part(self, part: Fields) -> None:
        kind = part.get("type")
        tokens = _MEDIA.get(kind) if isinstance(kind, str) else None
        text = part.get("text", part.get("refusal"))
        if tokens is not None:
            self.extra += IMAGE_LOW_TOKENS if kind in _IMAGES and _low_detail(part) else tokens
        elif isinstance(text, str):
            self.texts.append(text)
        else:
            self.extra += UNKNOWN_TOKENS

    def _calls(self, message: Fields) -> None:
        """Take the tool calls of an assistant's message, in the present form and in the older one."""
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            self._count(len(calls))
            self.texts.extend(map(_call_text, calls))
        if call := message.get("function_call"):
            self.texts.append(_call_text({"function": call}))


def _call_text(call: object) -> str:
    """The arguments of a call as the model wrote them, else the whole call as JSON."""
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    return arguments if isinstance(arguments, str) else _written(call)


def _low_detail(part: Fields) -> bool:
    image = part.get("image_url")
    return "low" in (part.get("detail"), image.get("detail") if isinstance(image, dict) else None)


def _written(value: object) -> str:
    return orjson.dumps(value).decode()
