"""Wire formats: bytes to contract values and back, as pure functions.

One module per dialect, each exporting `DIALECT`; modules whose name begins with `_` are shared helpers.
Adding a dialect is adding a file: the server scans this folder.
"""
