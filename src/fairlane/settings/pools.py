"""The settings of pools and their engines, as typed, frozen values."""

from typing import Annotated, Literal

from pydantic import Field

from fairlane.engines import address
from fairlane.settings.fields import ApiKey, Derived, EngineUrl, FilePath, Models, Name, Seconds, Section, Slots


class EngineSettings(Section):
    """One inference server of a pool."""

    name: Name = Field(description="Name in metrics, logs and state; unique among all engines.")
    kind: Literal["embedded", "llamacpp", "vllm", "sglang", "tgi", "openai", "simulated"] = Field(
        description="`embedded`: a llama.cpp server that Fairlane starts itself; `llamacpp`: one that runs already; `vllm`, `sglang`, "
        "`tgi`: these servers, whose load is read from their metrics; `openai`: any other server of the OpenAI API; "
        "`simulated`: one without a model, from `fairlane engine`."
    )
    url: Annotated[EngineUrl | None, Derived("none for `embedded`, else required")] = Field(
        default=None,
        description="Base URL, with or without `/v1`, such as `http://10.0.0.5:8000`; an embedded engine finds its own. "
        "`dns+http://NAME:8000` makes each address of the name an engine with these settings, as they come and go.",
    )
    lookup_s: Seconds = Field(
        default=5.0,
        description="Seconds between two lookups of the name of a `dns+` URL; new addresses get requests and lost ones get no more "
        "after about one of them.",
    )
    api_key: ApiKey | None = Field(
        default=None, repr=False, description="Key sent to the engine as a bearer token; write `${NAME}` and keep it in the environment."
    )
    model_file: Annotated[FilePath | None, Derived("the demonstration model")] = Field(
        default=None, description="For `embedded`: path of a .gguf file, from the working directory."
    )
    slots: Annotated[Slots | None, Derived("the pool's `slots`")] = Field(
        default=None, description="Requests the engine runs at once; engines of one pool may differ."
    )
    kv_tokens: Annotated[int | None, Derived("what the engine reports")] = Field(
        default=None,
        ge=1,
        description="Tokens that the engine's KV cache holds; requests are let in only as far as their predicted peak fits. No limit "
        "where neither says it: an engine with a fixed context for each slot needs none.",
    )
    prefill_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Most prompt tokens of streamed requests that wait for their first token at once, because a long prefill slows "
        "what runs; if there are none, a prompt of any length may start. By default what is seen to be prefilled in half the "
        "`ttft_slo_s` of the most urgent class that has one; no limit without one.",
    )
    context: Annotated[int | None, Derived("what the engine reports")] = Field(
        default=None, ge=1, description="Most tokens of one request, prompt and output; a longer one is refused before it waits."
    )
    connect_s: Seconds = Field(default=5.0, description="Seconds to connect; an engine that is up accepts in milliseconds.")
    first_byte_s: Seconds = Field(
        default=600.0, description="Seconds until the answer begins; a long prompt on a slow machine takes minutes."
    )
    idle_s: Seconds = Field(default=120.0, description="Seconds without a byte within an answer; beyond it the engine is taken to hang.")
    probe_s: Annotated[Seconds, Derived("1 for `vllm`, `sglang` and `tgi`, else 5")] = Field(
        default_factory=lambda known: 1.0 if known.get("kind") in {"vllm", "sglang", "tgi"} else 5.0,
        description="Seconds between two rounds of probes; a dead engine is noticed after about one of them, and its load is as old.",
    )
    priority_step_s: float = Field(
        default=5.0,
        ge=0,
        le=86400,
        description="For `vllm` and `sglang`: seconds by which a request may overtake those of the next class that wait inside the "
        "engine, where the engine orders by priority; 5 is far beyond what should ever wait there, 0 keeps the order of dispatch.",
    )
    price_per_hour: float | None = Field(
        default=None, ge=0, description="What the engine costs in an hour, in any currency; shown beside it in the state. None by default."
    )
    scheduler_plugin: bool = Field(
        default=False,
        description="For `vllm`: whether class, tenant, cost, order and predicted length are sent along in `vllm_xargs`, for a "
        "scheduler that is plugged into the engine; off, because without one nobody reads them.",
    )

    @property
    def looked_up(self) -> bool:
        """Whether this stands for one engine at each address of a name."""
        return self.url is not None and address.is_looked_up(self.url)


class FastLaneSettings(Section):
    """A part of each engine that is kept for short requests, so that they need not wait behind long ones.

    Engines with fewer than 4 slots have none. Requests of the least urgent class do not use it.
    """

    places: int = Field(
        default=1, ge=1, description="Slots of each engine that are kept; what is more than a tenth of them, rounded up, is lent out."
    )
    kv: float = Field(default=0.05, ge=0, le=0.5, description="Part of each engine's KV tokens that is kept, where they are known.")
    max_input: int = Field(default=1024, ge=1, description="Most prompt tokens of a short request.")
    max_output: int = Field(
        default=64,
        ge=1,
        description="Most output tokens of a short request, all choices together: by its own cap or, without one, if 27 of the last 30 "
        "answers of its tenant, model and template had no more.",
    )


class PoolSettings(Section):
    """Engines that can stand in for each other: each serves every model of the pool."""

    name: Name = Field(description="Name in metrics, logs and state.")
    models: Models = Field(
        description="Model names that clients may ask for: names, or `{alias: engine-name}` where the engine uses another name."
    )
    engines: tuple[EngineSettings, ...] = Field(min_length=1, description="The engines of the pool.")
    slots: Slots = Field(
        default="auto",
        description="Requests that each engine runs at once, so that others wait here, where their order can still be chosen; one with "
        "several answers (`n`, `best_of`) or prompts [counts as so many](engines.md#how-many-requests-at-once). "
        "`auto` takes what the engine reports, and starts an embedded engine with 2; where an engine reports none it begins with 16 and "
        "finds the number itself ([how](engines.md#how-many-requests-at-once)). A number switches that off.",
    )
    tpot_slo_s: Seconds | None = Field(
        default=None,
        description="Time per output token to be kept, in seconds; engines whose slots are found are given fewer requests while more than "
        "one answer in 20 is slower. None by default: what an engine can do is not known beforehand.",
    )
    prefix_affinity: bool = Field(
        default=True,
        description="Requests of one conversation or with one system prompt go to the engine that is likely to have the beginning of their "
        "prompt in its prefix cache, unless it is busier than others ([how](engines.md#which-engine)); `false` ignores caches.",
    )
    fast_lane: FastLaneSettings | None = Field(
        default=None, description="A lane for short requests; `{}` takes its defaults. Without it all requests share all slots."
    )

    @property
    def aliases(self) -> dict[str, str]:
        """What the engines call each model that clients may ask for."""
        return {alias: known_as for entry in self.models for alias, known_as in entry.items()}
