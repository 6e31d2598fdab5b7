"""Prompts about code: edits that return the whole code, explanations, completions.

The code comes from the standard library. This module does not know models or corpora.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hybridspec.demo.eagle3.material import Function

# {c} is the fenced code, {i} the instruction.
EDIT_FRAMES = (
    "{i}\n\n{c}\n\nReturn the whole edited code in one markdown code block.",
    "Edit this Python code.\n\nInstruction: {i}\n\n{c}\n\nAnswer with the full code only.",
    "Here is a Python function:\n\n{c}\n\n{i} Return the complete function.",
    "### Task\n{i}\n\n### Code\n{c}\n\nWrite the whole new code in a code block.",
    "Please change the code below. {i}\n\n{c}\n\nGive back the entire code after the change.",
    "{c}\n\n{i} Print the whole changed code, nothing else.",
    "You are editing a file.\n\nCurrent content:\n{c}\n\nRequested change: {i}\n\nNew content:",
    "Rewrite the following code as the instruction says.\n\n## Code\n{c}\n\n## Instruction\n{i}",
)
EDITS = (
    "Add type hints to all arguments and to the return value.",
    "Add a short docstring that says what the function does.",
    "Add a comment before each important line.",
    "Rename the function to `{new}` and keep everything else.",
    "Rename the argument `{arg}` to `{new}` everywhere.",
    "Return None early if `{arg}` is None.",
    "Raise a ValueError if `{arg}` is empty.",
    "Print a message when the function starts and before it returns.",
    "Add a keyword argument `verbose=False` and print the result if it is true.",
    "Log the arguments with the logging module at the start.",
    "Make the function handle the case where `{arg}` is a list.",
    "Remove all comments and the docstring.",
    "Use f-strings instead of the % operator or format().",
    "Wrap the body in a try/except block that re-raises the error after printing it.",
    "Rename the function to `{new}` and add a docstring with an example.",
    "Give the argument `{arg}` the default value None.",
    "Fix any bug that you see and keep the style of the code.",
    "Make the code simpler without changing what it returns.",
    "Change the function so that it also counts how often it was called.",
    "Convert the result to a string before returning it.",
)
NEW_NAMES = (
    "process_items", "compute_value", "load_entry", "handle_request", "source_value", "data",
    "convert_input", "find_match", "read_block", "update_state", "target_name", "item_list",
    "parse_line", "build_result", "check_input", "options", "first_value", "path_name",
)  # fmt: skip
QUESTIONS = (
    "Explain what this Python function does, step by step.\n\n{c}",
    "What does the following code do?\n\n{c}",
    "Write three unit tests with pytest for this function.\n\n{c}",
    "Write a docstring for this function.\n\n{c}",
    "Are there bugs in this code? Explain.\n\n{c}",
    "Describe the arguments and the return value of this function.\n\n{c}",
    "Translate this Python function to JavaScript.\n\n{c}",
    "Write a similar function that does the opposite.\n\n{c}",
    "Review this code and suggest two improvements.\n\n{c}",
)
TASKS = (
    "Write a Python function that {t}.",
    "Write a Python function that {t}, with a docstring and an example.",
    "Implement a function in Python that {t}. Return only the code.",
    "How do I write a program that {t}?",
    "Write a class in Python with a method that {t}.",
    "Write a JavaScript function that {t}.",
)
ACTIONS = (
    "reverses the words of a sentence", "finds the largest number in a list",
    "checks whether a string is a palindrome", "counts the vowels in a text",
    "computes the factorial of a number", "merges two sorted lists",
    "removes duplicates from a list", "reads a CSV file and sums one column",
    "finds all prime numbers below n", "sorts a list of dictionaries by a key",
    "converts Celsius to Fahrenheit", "computes the Fibonacci sequence",
    "validates an email address", "counts how often each word appears in a file",
    "flattens a nested list", "finds the common elements of two lists",
    "rotates a matrix by 90 degrees", "performs a binary search",
    "computes the greatest common divisor", "downloads a web page and prints its title",
    "implements a stack with push and pop", "implements a queue with two stacks",
    "checks whether two strings are anagrams", "finds the longest word in a text",
    "computes the average of a list of numbers", "draws a triangle of stars",
    "generates a random password", "parses a date such as 2024-05-17",
    "splits a list into chunks of a given size", "traverses a binary tree in order",
    "inverts a dictionary", "finds the second smallest number in a list",
    "capitalises every word in a string", "converts a number to binary",
    "simulates a bank account with deposits and withdrawals", "finds files by extension",
    "retries a request three times", "computes the distance between two points",
    "encrypts a text with a Caesar cipher", "checks balanced parentheses",
)  # fmt: skip


def fenced(source: str, random: Random) -> str:
    """The source in a markdown block, with or without a language tag."""
    return f"```{random.choice(('python', 'python', 'python', 'py', ''))}\n{source}\n```"


def edit_prompt(function: Function, random: Random) -> str:
    """One edit of one function, answered by its whole new code."""
    usable: Callable[[str], bool] = lambda edit: "{arg}" not in edit or bool(function.arguments)  # noqa: E731
    edit = random.choice([e for e in EDITS if usable(e)])
    argument = random.choice(function.arguments) if function.arguments else ""
    instruction = edit.format(arg=argument, new=random.choice(NEW_NAMES))
    return random.choice(EDIT_FRAMES).format(i=instruction, c=fenced(function.source, random))


def code_prompt(function: Function, random: Random) -> str:
    """A question about a function, or a small programming task."""
    if random.random() < 0.5:
        return random.choice(TASKS).format(t=random.choice(ACTIONS))
    return random.choice(QUESTIONS).format(c=fenced(function.source, random))
