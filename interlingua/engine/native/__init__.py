"""The native CPU engine: scheduling and memory in Python, one C++ call per step."""
