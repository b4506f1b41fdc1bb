"""How much of anything one body may hold, in one table: what is not bounded here is bounded by the room in the model.

Text is cheap: 40 MB of it are parsed in 40 ms. Objects are not: a million of them keep the interpreter's lock for
seconds, whichever thread makes, checks and frees them, and nothing else is served meanwhile. So the body is counted
before it is parsed (`BODY`), and each list is measured before its items are looked at.
"""

from __future__ import annotations

MAX_IDS = 1_048_576  # token ids in a list, elements of a tensor
MAX_PROMPTS = 128  # of one call
MAX_MESSAGES = 16_384  # of a conversation
MAX_PARTS = 16_384  # of a prompt, or of a message's content
MAX_MEDIA = 20  # of the parts
MAX_TOOLS = 128
MAX_TOOL_CALLS = 128  # of a message
MAX_ARGUMENTS = 262_144  # characters of one call's arguments
MAX_CHOICES = 16_384  # of `guided_choice`
MAX_TENSORS = 32  # inputs, or outputs, of a request
MAX_FIELDS = 131_072  # of a protobuf message, inner ones counted; a packed list is one

# What JSON outside of strings may hold: bytes to count, how many, and what they stand for.
BODY = (
    (b"{[", 65_536, "arrays and objects"),
    (b":", 262_144, "members of objects"),
    (b",", 2 * MAX_IDS, "values"),
)
