"""Prompts to compare drafters on: a small set of our own, or a file."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BUILT_IN", "Prompt", "read_prompts"]


@dataclass(frozen=True)
class Prompt:
    """A request as a user would make it.

    Attributes:
        name: What it is called in the report.
        text: What the user says.
    """

    name: str
    text: str


_REPORT = """\
The harbour ferry was out of service for most of Tuesday after a routine check found a crack in the
housing of its second engine. The operator, Northline, moved passengers to two smaller boats, which
together carry about half as many people, and asked commuters to travel before seven or after ten.
Queues reached the market square by eight o'clock. A spokeswoman said that a replacement part had
been ordered from the maker and would arrive on Thursday at the earliest, so the ferry would not run
again before the weekend. The town council offered free parking at the old mill for the rest of the
week and put on an extra bus across the bridge every twenty minutes."""

_LETTER = """\
dear ms okafor, i am writing to you becuase the heating in flat 12 has stoped working again on
monday morning. the engineer who came in november said that the valve would need replaceing soon,
but nobody has come since then. we have two small childs and the flat was 14 degrees last night.
please let me know untill wednesday when somebody can come. kind regards, jonas lindqvist"""

_ORDERS = """\
Order 4471: 12 folding chairs (oak), to Mireille Tanaka, 8 Canal Street, paid 3 May, shipped 5 May.
Order 4472: 1 desk lamp (brass), to Tomas Eklund, 31 Hill Road, paid 3 May, waiting for stock.
Order 4473: 4 bookshelves (pine), to Ada Brandt, 2 Mill Lane, paid 4 May, shipped 6 May.
Order 4474: 2 garden benches (teak), to Samir Haddad, 17 Park View, not paid."""

_CODE = """\
def mean_of_column(rows, column):
    total = 0
    count = 0
    for row in rows:
        if row[column] is not None:
            total = total + row[column]
            count = count + 1
    return total / count"""

_MINUTES = """\
Minutes of the garden society, 14 March. Present: Ines Falk (chair), Peter Oduya, Marta
Lindholm, Jo Reyes. The water pump by the east gate has leaked since January. Peter has two
offers for a new one: 640 euros from Halloran and 585 euros from Brook and Sons, who can come a
week earlier. The society chose Brook and Sons. The spring fair will be on 11 May; Marta books
the tent and Jo prints the posters. The membership fee stays at 30 euros. Three plots are free,
and eleven people wait for one. Ines asks all members to label their compost bins, since the
council fined the neighbouring society last autumn."""

_NOTICE = """\
The swimming hall on Tower Street will be closed from Monday to Friday next week. The hall staff
will repair the heating and clean the large pool. Visitors with a monthly card may use the
swimming hall on River Road during this week. The swimming hall on Tower Street will open again
on Saturday at eight o'clock. Swimming lessons for children will not take place next week. The
swimming school will write to all parents about the new dates. Season tickets for the swimming
hall on Tower Street will be valid for one week longer."""

_INVENTORY = """\
The storeroom holds 14 boxes of copy paper, size A4, on shelf 2, bought in April. It holds 3
laser printers, model Korvus 220, on shelf 5, bought in June. It holds 26 desk chairs, model
Alto, on the floor, bought in February. It holds 9 desk lamps, model Piko, on shelf 1, bought in
August. It holds 40 network cables, length 3 metres, on shelf 4, bought in May. It holds 6
monitors, model Vista 27, on shelf 3, bought in June."""

_QUEUE = """\
class JobQueue:
    def __init__(self, limit):
        self.limit = limit
        self.jobs = []

    def add_job(self, job):
        if len(self.jobs) >= self.limit:
            raise ValueError("the queue is full")
        self.jobs.append(job)

    def take_job(self):
        if len(self.jobs) == 0:
            raise ValueError("the queue is empty")
        return self.jobs.pop(0)

    def count_jobs(self):
        return len(self.jobs)"""

BUILT_IN = (
    Prompt("chat", "What should I think about before I adopt a cat? Give me a short list."),
    Prompt("chat 2", "My bread never rises properly. What may be wrong, and what can I try?"),
    Prompt("summary", f"Summarise this article in three sentences.\n\n{_REPORT}"),
    Prompt("summary 2", f"Write a short summary of these minutes.\n\n{_MINUTES}"),
    Prompt(
        "editing",
        f"Correct the spelling and the capital letters of this letter. Change nothing else.\n\n"
        f"{_LETTER}",
    ),
    Prompt(
        "editing 2",
        "Write out the whole text again and replace Tower Street by Castle Street. Change nothing "
        f"else.\n\n{_NOTICE}",
    ),
    Prompt(
        "extraction",
        "List the orders below as JSON objects with the keys order, item, customer, address and "
        f"state.\n\n{_ORDERS}",
    ),
    Prompt(
        "extraction 2",
        "List everything in the storeroom, one item a line, in the form item; model or size; "
        f"place; month.\n\n{_INVENTORY}",
    ),
    Prompt(
        "code",
        "Rewrite this function so that it returns None where no row has a value, and add a "
        f"docstring.\n\n{_CODE}",
    ),
    Prompt(
        "code 2",
        "Write out this class again with a method has_room that says whether another job can be "
        f"added.\n\n{_QUEUE}",
    ),
)


def read_prompts(path: str | os.PathLike[str]) -> list[Prompt]:
    """Reads a file of prompts.

    A file that ends in ``.jsonl`` holds an object with ``prompt`` and perhaps ``name`` in each
    line. In any other file, lines of three dashes stand between the prompts.

    Raises:
        ValueError: There is no prompt in it, or a line is not as it should be.
    """
    path = Path(path)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        lines = [(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
        prompts = [_parse_line(path, i, line) for i, line in lines]
    else:
        parts = "".join("\0" if line.strip() == "---" else line for line in _lines(text))
        texts = [part.strip() for part in parts.split("\0")]
        prompts = [Prompt(f"prompt {i}", one) for i, one in enumerate(filter(None, texts), 1)]
    if not prompts:
        raise ValueError(f"{path} holds no prompt")
    return prompts


def _lines(text: str) -> list[str]:
    return text.replace("\0", "").splitlines(keepends=True)


def _parse_line(path: Path, number: int, line: str) -> Prompt:
    try:
        entry = json.loads(line)
        prompt, name = entry["prompt"], entry.get("name", f"prompt {number}")
    except (ValueError, KeyError, TypeError, AttributeError):
        prompt = name = None
    if not isinstance(prompt, str) or not isinstance(name, str) or not prompt:
        raise ValueError(f'{path}, line {number}: write {{"name": "...", "prompt": "..."}}')
    return Prompt(name, prompt)
