"""The simulated engine that `fairlane engine` serves. It tells what an OpenAI server tells, and how many requests it runs at once."""

from collections.abc import Sequence
from dataclasses import replace

from fairlane.engines.adapter import Report, answer, count, member, parse
from fairlane.engines.openai import OpenAI


class Simulated:
    """Reads `/v1/models`, whose one card has `max_num_seqs` beside what an OpenAI server puts there."""

    kind = "simulated"
    probes = OpenAI.probes

    def read(self, answers: Sequence[tuple[int, bytes]]) -> Report:
        """Report what any server of the API says, and the slots of the first model if they are there."""
        report = OpenAI().read(answers)
        cards = member(parse(answer(answers, 0)[1]), "data") if report.models else None
        first = cards[0] if isinstance(cards, list) and cards else None
        return replace(report, slots=count(member(first, "max_num_seqs")))
