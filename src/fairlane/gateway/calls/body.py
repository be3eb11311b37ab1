"""What a request body asks for, read once, and the few members of it that are the gateway's to change.

`read` refuses what is malformed, so nothing is queued, charged or sent for it. Everything that no limit or estimate
depends on is the engine's to judge.

Two readers of one body must not understand it differently, or a client is charged for one request and runs another:
- A top-level name that is counted on here and given twice is refused: this parser takes the last, an engine may take
  the first. To look for one, the parsed body is written again: where that gives the very same bytes, as with the
  compact JSON that most clients send, nothing is repeated. Else a short body is searched: a repeated name needs its
  quoted spelling twice, or an escaped letter. What is left, and any long body, is scanned member by member.
- A name that equals an owned one but for its case is refused, because some engines match names without case.
- Of two caps on the output the smaller wins, and the other is lowered to it, whichever the engine obeys.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import orjson

from fairlane.errors import Reason, Refused
from fairlane.gateway.calls import prompt, shape
from fairlane.gateway.calls.prompt import Fields, wrong
from fairlane.gateway.calls.shape import Shape
from fairlane.gateway.calls.splice import Edits, edited, members
from fairlane.predict.estimate import PromptSize

CAP_MAX = 10_000_000  # a larger cap on the output counts as this: beyond any context, and sums stay small
CHOICES_MAX = 128  # of `n` and `best_of`: OpenAI's bound
VALUES_MAX = 1_000_000  # in one body: as tokens they fill the longest contexts, and more would hold up the event loop
MEMBERS_MAX = 1000  # at the top level, where each is looked at
SEARCH_BYTES_MAX = 16_384  # of a body that is searched: beyond, scanning is faster, since it skips strings

# Names by which a proxy or an engine may be told where to connect, or as whom, or which request it is: by its id one client
# could address another's. They never reach an engine.
STEERING = frozenset(
    {"api_base", "api_key", "api_type", "api_version", "base_url", "custom_llm_provider", "organization"}
    | {"extra_body", "extra_headers", "extra_query", "fallbacks", "model_list"}
    | {"bootstrap_host", "bootstrap_port", "bootstrap_room", "kv_transfer_params", "rid", "request_id"}
)
# Names whose values are counted on here and obeyed by engines. `user` is not among them: no engine acts on it.
METERED = frozenset(
    {"model", "messages", "prompt", "input", "tools", "functions", "response_format", "n", "best_of"}
    | {"max_tokens", "max_completion_tokens", "stream", "stream_options", "service_tier", "priority", "vllm_xargs"}
)
# Names that steer nothing, are no other's twin, and are looked at in every body or in none. Most bodies have no others.
USUAL = frozenset(
    {"model", "messages", "prompt", "input", "max_tokens", "max_completion_tokens", "stream", "stream_options", "user"}
    | {"temperature", "top_p", "top_k", "min_p", "stop", "seed", "frequency_penalty", "presence_penalty", "repetition_penalty"}
    | {"tools", "tool_choice", "parallel_tool_calls", "response_format", "logprobs", "top_logprobs", "logit_bias"}
    | {"reasoning_effort", "encoding_format", "dimensions"}
)

_OWNED = METERED | STEERING
_QUOTED = {name: f'"{name}"'.encode() for name in METERED}
_ESCAPED_LETTER = re.compile(rb"\\u00[567]")
_ASK_USAGE = b'{"include_usage":true}'
_SHAPELESS = Shape()
XARGS_PREFIX = "fairlane_"  # of the arguments by which the gateway tells a scheduler inside vLLM what it knows
_COUNTED_BYTES_MIN = 2 * VALUES_MAX  # a shorter body cannot hold too many values


@dataclass(frozen=True, eq=False)
class Route:
    """A metered route: its path below an engine's address, what measures its prompts, and what caps its output.

    Only spellings that engines obey on a route are caps there: one that is ignored would promise what nobody keeps.
    A route without caps generates no tokens.
    """

    path: str
    prompt: Callable[[Fields], tuple[PromptSize, int]]
    caps: tuple[str, ...] = ()


CHAT = Route("/v1/chat/completions", prompt.of_chat, ("max_tokens", "max_completion_tokens"))
COMPLETIONS = Route("/v1/completions", prompt.of_completions, ("max_tokens",))
EMBEDDINGS = Route("/v1/embeddings", prompt.of_embeddings)
ROUTES: Mapping[str, Route] = {route.path: route for route in (CHAT, COMPLETIONS, EMBEDDINGS)}


class Call(NamedTuple):
    """What a body asks for. The last block is for `rewrite` and its caller.

    A tuple, because making a frozen dataclass of this size is a sixth of the time that reading a short body takes.
    """

    route: Route
    model: str
    stream: bool
    include_usage: bool  # the client wants to see the usage of its stream
    prompt: PromptSize
    shape: Shape  # empty where the route generates nothing
    cap: int | None  # most output tokens of one choice; 0 where the route generates none
    choices: int  # answers to be generated: the prompts times the choices of each
    service_tier: str | None
    priority: int | None
    bad_priority: bool  # there is one and it is no whole number; wrong only where priorities are trusted
    user: str | None

    fields: frozenset[str]  # names of the top-level members
    fixes: Edits  # what no engine may see as it is
    stream_options: bytes  # the client's with the usage asked for: to be sent where the gateway needs the usage
    xargs: bytes  # the client's arguments for what is plugged into vLLM, as written, without those that are ours and without braces


def read(route: Route, body: bytes, *, hinted: bool = False) -> Call:
    """Understand a body, or raise `Refused` with the parameter that is wrong; `hinted` as for `shape.of`."""
    fields = _parse(body)
    usual = USUAL.issuperset(fields)
    if not usual:
        _refuse_case_twins(fields)
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise wrong("model", "must be a non-empty string")
    size, prompts = route.prompt(fields)
    stream = "stream" in fields and _flag(fields, "stream")
    include_usage, stream_options = _stream_options(fields) if "stream_options" in fields else (False, _ASK_USAGE)
    cap, fixes = _cap(route, fields)
    choices, service_tier, rank, bad_priority = (1, None, None, False) if usual else _seldom_given(route, fields)
    xargs = b""
    if not usual:
        fixes = {**dict.fromkeys(STEERING.intersection(fields)), **fixes}
        if "vllm_xargs" in fields:
            xargs, fixes = _xargs(body, fields, fixes)
    user = fields.get("user")
    return Call(
        route,
        model,
        stream and bool(route.caps),
        include_usage,
        size,
        shape.of(route.path, fields, size, hinted=hinted) if route.caps else _SHAPELESS,
        cap,
        prompts * choices,
        service_tier,
        rank,
        bad_priority,
        user if isinstance(user, str) else None,
        frozenset(fields),
        fixes,
        stream_options,
        xargs,
    )


def rewrite(body: bytes, call: Call, *, model: str | None, drop: frozenset[str], set_fields: Mapping[str, bytes]) -> bytes:
    """The body for an engine: its own name of the model, without the members `drop`, with the JSON values `set_fields`.

    Every byte outside the changed members, and the commas of removed ones, stays as it is; where nothing changes the
    very same object comes back. `model` None keeps the client's name.
    """
    edits = call.fixes
    if set_fields or not drop.isdisjoint(call.fields):
        edits = {**edits, **dict.fromkeys(drop & call.fields), **set_fields}
    if model is not None and model != call.model:
        edits = {**edits, "model": orjson.dumps(model)}
    return edited(body, edits, call.fields, METERED) if edits else body


def _unreadable(what: str, param: str | None = None) -> Refused:
    return Refused(Reason.INVALID_REQUEST, f"The request body {what}.", param=param)


def _parse(body: bytes) -> dict[str, object]:
    """The top-level object of a body that every reader understands alike.

    Writing it again also bounds its depth, at 254, to what the scanner of members can follow.
    """
    if len(body) > _COUNTED_BYTES_MIN and len(body) - len(body.translate(None, b"[{,")) > VALUES_MAX:
        raise _unreadable(f"holds more than {VALUES_MAX} values")
    try:
        fields = orjson.loads(body)
        written = orjson.dumps(fields)
    except orjson.JSONDecodeError as error:
        raise _invalid_json(body, error) from None
    except orjson.JSONEncodeError:
        raise _unreadable("is nested too deeply") from None
    if not isinstance(fields, dict):
        raise _unreadable("must be a JSON object")
    if body != written and _may_repeat(body, fields):
        _refuse_repeats(body.decode())
    return fields


def _invalid_json(body: bytes, error: orjson.JSONDecodeError) -> Refused:
    """What is wrong, and at which byte: the parser counts characters, and not at all in what is no text."""
    if not body.strip():
        return _unreadable("is empty")
    try:
        at = len(body.decode()[: error.pos].encode())
    except UnicodeDecodeError as no_text:
        return _unreadable(f"is not valid JSON: not UTF-8 at byte {no_text.start}")
    return _unreadable(f"is not valid JSON: {error.msg} at byte {at}", _overflowing(error))


def _overflowing(error: orjson.JSONDecodeError) -> str | None:
    """The member with the number that is too large for JSON's readers; None where that is not what is wrong."""
    if "infinity" not in error.msg:
        return None
    try:
        return next((member.name for member in members(error.doc) if member.end >= error.pos), None)
    except (ValueError, RecursionError):
        return None


def _may_repeat(body: bytes, fields: Fields) -> bool:
    """Be false only if no metered name is spelt twice: small letters and `_` have one escape each, u005f to u007a."""
    if len(body) > SEARCH_BYTES_MAX:
        return True
    for name in fields:
        quoted = _QUOTED.get(name)
        if quoted is not None and body.count(quoted) > 1:
            return True
    return b"\\u00" in body and _ESCAPED_LETTER.search(body) is not None


def _refuse_repeats(text: str) -> None:
    seen: set[str] = set()
    for count, member in enumerate(members(text), start=1):
        if member.name in seen and member.name in METERED:
            raise wrong(member.name, "is given more than once")
        if count > MEMBERS_MAX:
            raise _unreadable(f"has more than {MEMBERS_MAX} members")
        seen.add(member.name)


def _refuse_case_twins(fields: Fields) -> None:
    names = "".join(fields)
    if names.isascii() and names.islower():
        return
    for name in fields:
        twin = name.casefold()
        if twin in _OWNED and name not in _OWNED:
            raise wrong(twin, "must be written in lower case")


def _flag(fields: Fields, name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong(name, "must be true or false")
    return value is True


def _whole(fields: Fields, name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int or value < 1:  # which a bool is not
        raise wrong(name, "must be a whole number of at least 1")
    return value


def _stream_options(fields: Fields) -> tuple[bool, bytes]:
    options = fields.get("stream_options")
    if options is None:
        return False, _ASK_USAGE
    if not isinstance(options, dict):
        raise wrong("stream_options", "must be an object")
    asked = options.get("include_usage")
    if asked is not None and not isinstance(asked, bool):
        raise wrong("stream_options.include_usage", "must be true or false")
    return asked is True, orjson.dumps({**options, "include_usage": True})


def _cap(route: Route, fields: Fields) -> tuple[int | None, Edits]:
    """The cap on the output of one choice, and the edits that make every engine keep it."""
    least: int | None = None if route.caps else 0
    clash = False
    for name in route.caps:
        cap = _whole(fields, name) if name in fields else None
        if cap is not None and cap != least:
            clash = least is not None
            least = cap if least is None else min(least, cap)
    if least is None or (least <= CAP_MAX and not clash):
        return least, {}
    return min(least, CAP_MAX), {name: b"%d" % least for name in route.caps if fields.get(name) not in {None, least}}


def _xargs(body: bytes, fields: Fields, fixes: Edits) -> tuple[bytes, Edits]:
    """The client's arguments without those that only the gateway may give, and the edits that keep those from every engine.

    They are taken from the text, since written again a number could come out different.
    """
    given = fields["vllm_xargs"]
    if given is None:
        return b"", fixes
    if not isinstance(given, dict):
        raise wrong("vllm_xargs", "must be an object")
    text = body.decode()
    whole = next(text[m.value : m.end] for m in members(text) if m.name == "vllm_xargs")
    found = list(islice(members(whole), MEMBERS_MAX + 1))
    if len(found) > MEMBERS_MAX:
        raise wrong("vllm_xargs", f"must have at most {MEMBERS_MAX} members")
    kept = ", ".join([whole[m.start : m.end] for m in found if not m.name.startswith(XARGS_PREFIX)]).encode()
    owned = any(m.name.startswith(XARGS_PREFIX) for m in found)
    return kept, {**fixes, "vllm_xargs": b"{%b}" % kept} if owned else fixes


def _seldom_given(route: Route, fields: Fields) -> tuple[int, str | None, int | None, bool]:
    """The choices of each prompt, the service tier, the priority, and whether there is one that is no whole number."""
    choices = _choices(fields) if route.caps else 1
    priority = fields.get("priority")
    rank = priority if type(priority) is int else None
    return choices, _service_tier(fields), rank, priority is not None and rank is None


def _choices(fields: Fields) -> int:
    """How many answers are generated for each prompt."""
    if "n" not in fields and "best_of" not in fields:
        return 1
    wanted = {name: _whole(fields, name) or 1 for name in ("n", "best_of")}
    for name, count in wanted.items():
        if count > CHOICES_MAX:
            raise wrong(name, f"must be at most {CHOICES_MAX}")
    return max(wanted.values())


def _service_tier(fields: Fields) -> str | None:
    tier = fields.get("service_tier")
    if tier is not None and not isinstance(tier, str):
        raise wrong("service_tier", "must be a string")
    return tier
