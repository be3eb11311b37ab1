"""What no single value can show: names that refer to nothing, things said twice, settings that exclude each other.

The checks read the document rather than the typed settings. So they also run where a type is wrong elsewhere, and every
fault is found at once. A value of the wrong type is simply not seen here; it has its own fault.
"""

from collections.abc import Iterable, Iterator, Mapping

from fairlane.engines.address import is_looked_up
from fairlane.settings.document import EACH, Document, Place, path_text
from fairlane.settings.faults import did_you_mean
from fairlane.settings.fields import SHARE_UNITS, split_address
from fairlane.settings.model import ClassSettings, SchedulingSettings, ServerSettings, Settings

_ENGINES = ("pools", EACH, "engines", EACH)
_ELSEWHERE = frozenset({"llamacpp", "vllm", "sglang", "tgi", "openai", "simulated"})
_ONLY_FOR: Mapping[str, frozenset[str]] = {
    "url": _ELSEWHERE,
    "api_key": _ELSEWHERE,
    "lookup_s": _ELSEWHERE,
    "model_file": frozenset({"embedded"}),
    "priority_step_s": frozenset({"vllm", "sglang"}),
    "scheduler_plugin": frozenset({"vllm"}),
}
"""Settings of an engine that some kinds do not have."""
_OWN_SLOTS = frozenset({"embedded", "llamacpp", "simulated"})
"""Kinds of engines that tell how many requests they run."""
_YIELDING = frozenset({"gmp", "strict"})
"""Policies under which what gives way stays behind what it gave way to."""


def check(document: Document) -> None:
    """Notes every fault between values."""
    _same_name_twice(document)
    _same_key_twice(document)
    _same_model_twice(document)
    _unknown_classes(document)
    _unknown_models(document)
    _shares(document)
    for place, _ in document.find("classes", EACH):
        _class(document, place)
    for place, _ in document.find("classes", EACH, "yield_waste"):
        _yields(document, place)
    for place, _ in document.find(*_ENGINES):
        _engine(document, place)
    for place, _ in document.find("pools", EACH, "tpot_slo_s"):
        _tpot(document, place)
    _addresses(document)
    _someone_may_call(document)


def _texts(document: Document, *pattern: str | int) -> Iterator[tuple[Place, str]]:
    """The texts at matching places that have no fault yet."""
    for place, value in document.find(*pattern):
        if isinstance(value, str) and not document.faulty(place):
            yield place, value


def _number(document: Document, place: Place, default: float | None = None) -> float | None:
    """The number at a place, or the default where nothing is written; None for what has a fault."""
    if document.faulty(place):
        return None
    value = document.get(place, default)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _unique(document: Document, texts: Iterable[tuple[Place, str]], what: str) -> None:
    """`what` names the thing; `{}` in it stands for the text itself."""
    first: dict[str, Place] = {}
    for place, text in texts:
        earlier = first.setdefault(text, place)
        if earlier != place:
            where = f"{path_text(earlier)} (line {document.line(earlier)})"
            document.blame(place, f"{what.format(document.quoted(place, text))} appears twice, first at {where}")


def _same_name_twice(document: Document) -> None:
    for pattern, what in (
        (("pools", EACH, "name"), "the pool name {}"),
        ((*_ENGINES, "name"), "the engine name {}"),
        (("classes", EACH, "name"), "the class name {}"),
        (("tenants", EACH, "name"), "the tenant name {}"),
    ):
        _unique(document, _texts(document, *pattern), what)


def _same_key_twice(document: Document) -> None:
    hashes = _texts(document, "tenants", EACH, "key_hashes", EACH)
    _unique(document, ((place, text.lower()) for place, text in hashes), "this hash of a key")


def _aliases(document: Document) -> Iterator[tuple[Place, str]]:
    for place, models in document.find("pools", EACH, "models"):
        entries = ((place, models),) if isinstance(models, dict) else document.find(*place, EACH)
        for entry_place, entry in entries:
            if isinstance(entry, str):
                yield entry_place, entry
            elif isinstance(entry, dict):
                yield from (((*entry_place, alias), alias) for alias in entry)


def _same_model_twice(document: Document) -> None:
    _unique(document, _aliases(document), "the model {}")


def _class_names(document: Document) -> dict[str, Place] | None:
    """The names of the classes in order with their places, or None where the file leaves them in doubt."""
    if ("classes",) in document.guessed:
        return None
    classes = document.get(("classes",))
    if classes is None:
        return {one.name: () for one in Settings().classes}
    if not isinstance(classes, tuple):
        return None
    names = [(place, text) for place, text in document.find("classes", EACH, "name") if isinstance(text, str)]
    return {text: place for place, text in names} if len(names) == len(classes) else None


def _unknown_classes(document: Document) -> None:
    names = _class_names(document)
    if names is None:
        return
    ranks = {name: rank for rank, name in enumerate(names)}
    speakable = _speakable(document, names)
    for caller in (*(place for place, _ in document.find("tenants", EACH)), ("anonymous",)):
        own: int | None = None
        for key in ("class", "best_class"):
            for place, name in _texts(document, *caller, key):
                if name not in ranks:
                    hint = did_you_mean(name, speakable) or f"classes: {', '.join(speakable)}"
                    document.blame(place, f"there is no class {document.quoted(place, name)}", hint=hint)
                elif key == "class":
                    own = ranks[name]
                elif own is not None and ranks[name] > own:
                    document.blame(place, "is less urgent than the caller's own class, so nothing could use it")


def _speakable(document: Document, names: Mapping[str, Place]) -> list[str]:
    """The names that a hint may hold: what came from the environment stays unsaid."""
    return [name for name, place in names.items() if place not in document.references]


def _unknown_models(document: Document) -> None:
    unsure = any((*pool, "models") in document.guessed for pool, _ in document.find("pools", EACH))
    if unsure or ("pools",) in document.guessed:
        return
    known = {alias: place for place, alias in _aliases(document)}
    if document.get(("pools",)) is None:
        known = {alias: () for pool in Settings().pools for alias in pool.aliases}
    for tenant, _ in document.find("tenants", EACH):
        asked = list(_texts(document, *tenant, "models", EACH))
        for place, name in asked:
            if name == "*" and len(asked) > 1:
                document.blame(place, "'*' is every model, so nothing can stand beside it")
            elif name != "*" and name not in known:
                hint = did_you_mean(name, _speakable(document, known))
                document.blame(place, f"no pool has a model {document.quoted(place, name)}", hint=hint)


def _shares(document: Document) -> None:
    total = 0
    for place, _ in document.find("classes", EACH, "min_share"):
        share = _number(document, place)
        total += round((share or 0) * SHARE_UNITS)
        if total > SHARE_UNITS:
            document.blame(place, f"the shares up to here make {total / SHARE_UNITS:g}; all classes together may have at most 1")
            return


def _class(document: Document, place: Place) -> None:
    wait = _number(document, (*place, "max_wait_s"), ClassSettings.model_fields["max_wait_s"].default)
    slo = _number(document, (*place, "ttft_slo_s"))
    if slo is not None and wait is not None and slo > wait:
        document.blame((*place, "ttft_slo_s"), f"is longer than max_wait_s ({wait:g}), so it could never hold")
    if wait is None:
        return
    derived = ClassSettings.model_validate({"name": "derived", "max_wait_s": wait})
    least = _number(document, (*place, "retry_after_min_s"), derived.retry_after_min_s)
    most = _number(document, (*place, "retry_after_max_s"), derived.retry_after_max_s)
    if least is not None and most is not None and least > most:
        written = "retry_after_min_s" if document.get((*place, "retry_after_min_s")) is not None else "retry_after_max_s"
        document.blame((*place, written), f"the least Retry-After ({least:g}) is above the greatest ({most:g})")


def _yields(document: Document, place: Place) -> None:
    """Only the last of several classes gives way, and only where the order of the classes does not count what was lost."""
    if not _number(document, place) or ("classes",) in document.guessed:
        return
    classes = document.get(("classes",))
    last = len(classes) - 1 if isinstance(classes, tuple) else 0
    if last == 0 or place[1] != last:
        document.blame(place, "is only for the last of several classes, which gives its places to all others")
    policy = document.get(("scheduling", "policy"), SchedulingSettings.model_fields["policy"].default)
    if policy not in _YIELDING and not document.faulty(("scheduling", "policy")):
        document.blame(place, "is only for the policies 'gmp' and 'strict': others would give the place back")


def _engine(document: Document, place: Place) -> None:
    for _, kind in _texts(document, *place, "kind"):
        for key, kinds in _ONLY_FOR.items():
            if kind not in kinds and document.get((*place, key)) is not None:
                document.blame((*place, key), f"an engine of kind {kind!r} has no {key}")
        if kind != "embedded" and document.get((*place, "url")) is None and (*place, "url") not in document.guessed:
            document.blame((*place, "url"), f"is required for kind {kind!r}")
    url = document.get((*place, "url"))
    if isinstance(url, str) and not is_looked_up(url) and document.get((*place, "lookup_s")) is not None:
        document.blame((*place, "lookup_s"), "is only for a url that begins with dns+, whose name is looked up")


def _tpot(document: Document, place: Place) -> None:
    """Only where slots are found can the time per token be kept."""
    pool = place[:-1]
    otherwise = document.get((*pool, "slots"), "auto")
    for engine, _ in document.find(*pool, "engines", EACH):
        slots = document.get((*engine, "slots"))
        if document.get((*engine, "kind")) not in _OWN_SLOTS and not isinstance(otherwise if slots is None else slots, int):
            return
    document.blame(place, "could not be kept: no engine of the pool has slots that Fairlane finds itself; leave it out, or slots")


def _addresses(document: Document) -> None:
    fields = ServerSettings.model_fields
    ends = {}
    for key in ("listen", "admin_listen"):
        text = document.get(("server", key), fields[key].default)
        try:
            ends[key] = split_address(str(text))
        except ValueError:
            return
    if ends["listen"] == ends["admin_listen"] and ends["listen"][1]:
        written = "admin_listen" if document.get(("server", "admin_listen")) is not None else "listen"
        document.blame(("server", written), "clients and admin pages cannot share one address")


def _someone_may_call(document: Document) -> None:
    if document.guessed & {("tenants",), ("anonymous",)}:
        return
    if not document.get(("tenants",)) and document.get(("anonymous",)) is None:
        names = _speakable(document, _class_names(document) or {})
        name = "free" if "free" in names else (names or ["CLASS"])[-1]
        hint = f"add 'anonymous: {{class: {name}}}'"
        document.blame((), "nobody could call: there are no tenants and no anonymous callers", hint=hint)
