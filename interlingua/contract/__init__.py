"""The language of the project: values that cross rooms. Imports nothing of the project.

A request goes down (dialect -> service -> engine), token events come up. Everything here is a plain value:
frozen dataclasses, enums and protocols, without behaviour beyond small folds.
"""
