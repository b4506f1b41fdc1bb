"""interlingua: one text-inference server that speaks every client's language."""

__version__ = "0.1.0"
