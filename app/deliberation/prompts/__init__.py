"""The prompts, by intent."""
