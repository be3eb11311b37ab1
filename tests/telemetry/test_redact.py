"""What is hidden in a URL before it is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.telemetry.redact import redact


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("dns+http://name:8000", "dns+http://name:8000"),
        ("https://user:secret@host/v1", "https://***@host/v1"),
        ("redis://:secret@[::1]:6379/0", "redis://***@[::1]:6379/0"),
        ("https://token@host", "https://***@host"),
        ("https://host/v1?api_key=secret&deployment=x", "https://host/v1?api_key=***&deployment=***"),
        ("https://host/v1?secret", "https://host/v1?***"),
        ("https://host/v1?key=sec=ret", "https://host/v1?key=***"),
        ("https://host/#secret", "https://host/#***"),
        ("https://user:se/cr?e#t@host/v1?a=secret", "https://***@host/v1?a=***"),
        ("user:secret@host", "***@host"),
        ("http://@host", "http://@host"),
        ("", ""),
    ],
)
def test_secrets_are_hidden_and_places_shown(url: str, shown: str) -> None:
    """Scheme, host, port, path and the names in a query stay; user part, values and fragment go."""
    assert redact(url) == shown


@given(password=st.text())
def test_no_password_gets_through(password: str) -> None:
    """Whatever the password holds, escaped or not, it is not in what is shown."""
    assert redact(f"https://user:{password}@engine.internal:8000/v1") == "https://***@engine.internal:8000/v1"
