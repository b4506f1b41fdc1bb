"""Where models come from: a known name, a GGUF file, a folder, a Hugging Face id.

`resolve` turns each into `ModelFiles`.
"""

from interlingua.hub.files import ModelFiles
from interlingua.hub.resolve import resolve

__all__ = ["ModelFiles", "resolve"]
