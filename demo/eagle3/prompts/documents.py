"""Prompts about a passage of documentation: summaries, questions, rewrites.

This module does not know where the passage comes from.
"""

from __future__ import annotations

from random import Random

FRAMES = (
    "Summarize the following text in two sentences.\n\n{p}",
    "Summarize this text in three bullet points.\n\n{p}",
    "{p}\n\nWhat is this text about? Answer briefly.",
    "Read the text and answer the question.\n\nText:\n{p}\n\nQuestion: What is the main point?",
    "Rewrite this text in simpler words.\n\n{p}",
    "Explain this to a beginner.\n\n{p}",
    "Write three questions that this text answers.\n\n{p}",
    "Correct the grammar of this text and return all of it.\n\n{p}",
    "Give this text a title and repeat its most important sentence.\n\n{p}",
    "List the names, functions or numbers that this text mentions.\n\n{p}",
)


def document_prompt(passage: str, random: Random) -> str:
    """One request about one passage."""
    return random.choice(FRAMES).format(p=passage)
