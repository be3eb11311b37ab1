"""Request bodies for tests, valid ones with one member changed, and other spellings of names."""

import orjson
import pytest
from hypothesis import strategies as st

from fairlane.errors import Reason, Refused
from fairlane.gateway.calls.body import CHAT, COMPLETIONS, EMBEDDINGS, Call, Route, read

HELLO = [{"role": "user", "content": "Hello"}]
scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4), max_leaves=12
)


def chat(**members: object) -> Call:
    return read(CHAT, orjson.dumps({"model": "m", "messages": HELLO, **members}))


def refusal(route: Route, body: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        read(route, body)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert caught.value.rule.status == 400
    return caught.value


def with_member(route: Route, name: str, value: str) -> bytes:
    """A valid body of the route in which one member is replaced or added."""
    members = {
        "model": '"m"',
        {CHAT: "messages", COMPLETIONS: "prompt", EMBEDDINGS: "input"}[route]: '[{"role":"user"}]' if route is CHAT else '"x"',
    }
    return ("{" + ",".join(f'"{key}":{text}' for key, text in (members | {name: value}).items()) + "}").encode()


def escaped(name: str) -> str:
    """Another spelling of a name in JSON."""
    return name[:-1] + f"\\u{ord(name[-1]):04x}"


@st.composite
def spelt(draw: st.DrawFn, name: str) -> str:
    """A JSON spelling of a name with some letters escaped."""
    letters = [f"\\u{ord(letter):04x}" if draw(st.integers(0, 9)) == 0 else letter for letter in name]
    return '"' + "".join(letters) + '"'
