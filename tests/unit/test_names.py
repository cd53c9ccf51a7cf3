"""One name means one thing, and a listing of modules reads as a list of things."""

from __future__ import annotations

import ast
import re
import tokenize
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "streaming"
MODULES = sorted(SOURCE.rglob("*.py"))

NOUNS = {"hashing", "batching", "sampling", "indexing", "testing", "streaming", "ring", "string", "listing"}
"""Nouns of the field that end like participles."""
TERMS = {"read_ahead", "in_process", "stratified", "shared"}
"""Terms of the field that are no nouns, and what is shared with workers."""
NO_NOUNS = {
    *("above", "after", "ahead", "at", "before", "behind", "below", "beside", "beyond", "by", "done", "early", "for"),
    *("from", "gone", "how", "in", "inside", "late", "near", "of", "on", "outside", "start", "thin", "to", "told"),
    *("under", "until", "what", "when", "where", "which", "who", "whose", "with", "within", "nameless", "connect"),
}
RETIRED = {
    *("lane", "lanes", "thin", "thinly", "stretch", "stretches", "shelf", "courtesy", "errand"),
    *("errands", "purse", "purses", "wallet", "tally", "nameless"),
}
"""Private words that terms of the field have replaced, in code and prose; see the glossary in ARCHITECTURE.md."""
RETIRED_NAMES = {*RETIRED, "told", "ear", "lying"}
"""Words that prose may use, and that say too little as names."""


def words_of(name: str) -> list[str]:
    """The words of an identifier, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def test_no_class_name_occurs_twice() -> None:
    """A leading underscore makes no difference to a reader."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_modules_are_named_by_nouns() -> None:
    """No adverb, preposition or participle."""
    wrong = set()
    for path in MODULES:
        name = path.parent.name if path.name == "__init__.py" else path.stem
        last = name.strip("_").split("_")[-1]
        is_participle = last.endswith(("ing", "ed", "ly")) and last not in NOUNS
        if name not in TERMS and (is_participle or last in NO_NOUNS):
            wrong.add(str(path.relative_to(SOURCE)))
    assert wrong == set()


def test_no_retired_word_is_left_in_code() -> None:
    """One term for one thing: in names, and in comments and docstrings."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in MODULES:
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                is_name = token.type == tokenize.NAME
                if is_name or token.type in (tokenize.COMMENT, tokenize.STRING):
                    for word in (RETIRED_NAMES if is_name else RETIRED).intersection(words_of(token.string)):
                        found[word].add(f"{path.relative_to(SOURCE)}:{token.start[0]}")
    assert dict(found) == {}
