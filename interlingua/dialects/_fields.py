"""Tables of fields: one row per wire field, one column per set of ranges. Everything else is made from them.

`read` checks a JSON object against a table, `_openapi` and `scripts/make-docs` describe the same rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from interlingua.contract.dialect import DialectSettings
from interlingua.contract.errors import ValidationError
from interlingua.dialects._json import Document, show
from interlingua.dialects._rules import Refusal, Rule

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A row: one wire field.

    Attributes:
        name: as the client writes it.
        rules: column -> rule. `lenient` holds what the real servers take; a field without it keeps its rule.
        defaults: column -> what absent means, in words; empty where absent simply means off.
        effect: one sentence for the documentation.
        note: what a reader should be warned of.
    """

    name: str
    rules: Mapping[str, Rule]
    effect: str
    defaults: Mapping[str, str]
    note: str = ""

    def rule(self, column: str, lenient: bool) -> Rule:
        if lenient and "lenient" in self.rules:
            return self.rules["lenient"]
        return self.rules[column]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one JSON object, with the rules of each column ready to be looked up by name."""

    fields: tuple[Field, ...]
    checks: Mapping[tuple[str, bool], Mapping[str, Rule]]

    @classmethod
    def of(cls, columns: Sequence[str], fields: Sequence[Field]) -> Table:
        """Raises ValueError if two rows share a name."""
        if len({field.name for field in fields}) != len(fields):
            raise ValueError("two rows of a table have the same name")
        checks = {
            (column, lenient): {field.name: field.rule(column, lenient) for field in fields}
            for column in columns
            for lenient in (False, True)
        }
        return cls(tuple(fields), checks)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    def __contains__(self, name: str) -> bool:
        return any(field.name == name for field in self.fields)

    def read(
        self,
        document: Document,
        given: Mapping[str, Any],
        prefix: str,
        column: str,
        settings: DialectSettings,
    ) -> dict[str, Any]:
        """The checked values of the fields that `given` has; null is absent, unknown names are passed over.

        Args:
            document: the body, for messages.
            given: the JSON object that holds the fields.
            prefix: what stands before a field's name in messages (`parameters.`).
            column: whose ranges apply.

        Raises:
            ValidationError: the first field, in the client's order, that its rule does not take.
        """
        rules = self.checks[column, settings.lenient_ranges]
        values: dict[str, Any] = {}
        for name, value in given.items():
            if value is None:
                continue
            rule = rules.get(name)
            if rule is None:
                continue
            try:
                values[name] = rule.check(value, settings)
            except Refusal as refusal:
                raise refused(document, prefix, name, rule, refusal, settings) from None
        return values


def refused(
    document: Document, prefix: str, name: str, rule: Rule, refusal: Refusal, settings: DialectSettings
) -> ValidationError:
    """The error for a refused value: field, accepted range, given value."""
    expected = refusal.expected or rule.accepts(settings)
    given = refusal.given or document.show(name, refusal.value)
    return ValidationError(f"{prefix}{name}{refusal.suffix}", f"must be {expected}, got {given}")


def read_field(document: Document, field: Field, column: str, settings: DialectSettings) -> Any:
    """The checked value of a field at the body's root, None when absent. Raises ValidationError."""
    value = document.root.get(field.name)
    if value is None:
        return None
    rule = field.rule(column, settings.lenient_ranges)
    try:
        return rule.check(value, settings)
    except Refusal as refusal:
        raise refused(document, "", field.name, rule, refusal, settings) from None


def object_field(document: Document, name: str) -> Mapping[str, Any]:
    """The object in optional field `name` of the body, empty when absent. Raises ValidationError."""
    value = document.root.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValidationError(name, f"must be an object, got {show(value)}")
    return value


def note_unknown(request_id: str, *levels: tuple[str, Mapping[str, Any], Callable[[str], bool]]) -> None:
    """Names unknown fields in one debug line: they are accepted and change nothing.

    Args:
        levels: (prefix of names, JSON object, whether a name is known) for each object of the body.
    """
    if logger.isEnabledFor(logging.DEBUG):
        unknown = [prefix + name for prefix, given, known in levels for name in given if not known(name)]
        if unknown:
            logger.debug("request %s: unknown fields %s have no effect", request_id, ", ".join(unknown[:50]))
