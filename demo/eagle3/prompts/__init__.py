"""Prompts that the corpus asks the target, by kind. All wording here is this project's own."""
