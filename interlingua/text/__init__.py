"""Text and tokens: tokenizers, chat templates, grammars, and the way back from ids to text."""
