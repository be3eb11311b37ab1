"""What of earlier prompts one engine still has in its prefix cache, as far as that can be known from outside.

A prefix is remembered by a key and its number of tokens. The cache of an engine is its KV memory, which forgets what was not used
for longest, and so does this: what is remembered has at most as many tokens together as the engine holds. Tokens that two prefixes
share count once: a conversation that goes on takes over those of its turn before, and its template keeps its own. Of what one
request used, its turn before is forgotten first, since the turn that follows has it all, and its template last.
"""

from fairlane.core.request import Prefix

KV_TOKENS_UNKNOWN = 65_536  # of an engine that does not tell: a small one, since too much would be expected of it
ENTRIES_MAX = 4096  # of one engine: about 1 MB; at 160,000 tokens of KV that many prefixes have 40 tokens each

Entry = tuple[int, int]
"""Tokens of a prefix, and how many of them no other entry counts."""


class Prefixes:
    """The prefixes that one engine was sent lately."""

    def __init__(self) -> None:
        self.tokens = 0  # of all, each counted once
        self._kept: dict[int, Entry] = {}  # the longest unused first

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, prefix: Prefix, prompt_tokens: int) -> int:
        """How many tokens of a prompt the engine should have."""
        kept, longest = self._kept, 0
        for key in (prefix.whole, prefix.before, prefix.template):
            entry = kept.get(key)
            if entry is not None and entry[0] > longest:
                longest = entry[0]
        return min(longest, prompt_tokens)

    def note(self, prefix: Prefix, prompt_tokens: int, kv_tokens: int | None) -> None:
        """The engine gets a prompt; its KV cache has so many tokens."""
        whole, before, template, template_tokens = prefix
        kept = self._kept
        base, taken = kept.pop(before, (0, 0))
        if base:
            kept[before] = (base, 0)
        entry = kept.pop(whole, None)
        if entry is None:
            entry = (prompt_tokens, max(0, prompt_tokens - max(base, template_tokens)))
            self.tokens += entry[1]
        kept[whole] = (entry[0], entry[1] + taken)
        if template:
            entry = kept.pop(template, None)
            if entry is None:
                entry = (template_tokens, template_tokens)
                self.tokens += template_tokens
            kept[template] = entry
        most = KV_TOKENS_UNKNOWN if kv_tokens is None else kv_tokens
        while kept and (self.tokens > most or len(kept) > ENTRIES_MAX):
            self.tokens -= kept.pop(next(iter(kept)))[1]
