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
_DEFINITIONS = ("tools", "functions", "response_format")
_PLAIN_MEMBERS = 2  # a message of that many holds a role and a content and nothing else

Fields = Mapping[str, object]


def wrong(param: str, what: str) -> Refused:
    """The refusal of a parameter; `what` ends the sentence that its name begins."""
    return Refused(Reason.INVALID_REQUEST, f"'{param}' {what}.", param=param)


def of_chat(fields: Fields) -> tuple[PromptSize, int]:
    """The size of a chat with its tool definitions, and 1: the number of prompts."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or set(map(type, messages)) != {dict}:
        raise wrong("messages", "must be a non-empty list of objects")
    walk = _Walk()
    walk.count(messages)
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            walk.texts.append(content)
        elif content is not None:
            walk.content(content)
        if len(message) > _PLAIN_MEMBERS:
            walk.calls(message)
    for name in _DEFINITIONS:
        if definition := fields.get(name):
            walk.texts.append(_written(definition))
    walk.texts.append(" " * (MESSAGE_CHARACTERS * len(messages)))
    return PromptSize.of("".join(walk.texts), extra=walk.extra), 1


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


class _Walk:
    """Gathers the texts of messages, and the tokens of what is not text."""

    __slots__ = ("extra", "pieces", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.extra = 0
        self.pieces = 0

    def count(self, pieces: list[object]) -> None:
        """Refuse more pieces than one walk may take, before it takes them."""
        self.pieces += len(pieces)
        if self.pieces > PIECES_MAX:
            raise wrong("messages", f"must hold at most {PIECES_MAX} messages, parts and tool calls")

    def content(self, content: object) -> None:
        """Take a content that is not a plain string."""
        if not isinstance(content, list):
            self.texts.append(_written(content))
            return
        self.count(content)
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

    def calls(self, message: Fields) -> None:
        """Take the tool calls of an assistant's message, in the present form and in the older one."""
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            self.count(calls)
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
