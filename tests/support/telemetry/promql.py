"""Whether a PromQL query has data in given scrapes: which series it gives, by their labels, not what they are worth.

It knows what our queries use and refuses anything else. Values are not computed: whether comparisons with a number hold is
said from outside, all alike. Functions over a range give what the range's metric has.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import promql_parser as promql

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Labels = frozenset[tuple[str, str]]
Series = set[Labels]
OVER_RANGES = frozenset(("rate", "increase", "delta", "predict_linear"))
ARITHMETIC = frozenset("+-*/")
COMPARISONS = frozenset(("==", "!=", ">", "<", ">=", "<="))


class Database:
    """Series by the name of their samples, each with the instance that it was scraped at."""

    def __init__(self) -> None:
        self._series: dict[str, Series] = {}

    def add(self, name: str, labels: Mapping[str, str], instance: str) -> None:
        """One sample."""
        self._series.setdefault(name, set()).add(frozenset({**labels, "instance": instance}.items()))

    def has(self, name: str) -> bool:
        """Whether it has any series of that name."""
        return name in self._series

    def select(self, selector: promql.VectorSelector) -> Series:
        """The series that a selector matches."""
        assert selector.name
        matchers = selector.matchers.matchers
        return {
            labels
            for labels in self._series.get(selector.name, ())
            if all(_matches(one, dict(labels)) for one in matchers)
        }


def series_of(query: str, database: Database, *, comparisons_hold: bool) -> Series:
    """The series that a query gives; a scalar is one series without labels."""
    return Evaluation(database, comparisons_hold=comparisons_hold).of(promql.parse(query))


def selectors(query: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each metric that a query names, with the labels that it matches and their patterns."""

    def walk(node: object) -> Iterator[promql.VectorSelector]:
        match node:
            case promql.VectorSelector():
                yield node
            case promql.MatrixSelector():
                yield node.vector_selector
            case promql.ParenExpr() | promql.AggregateExpr() | promql.UnaryExpr():
                yield from walk(node.expr)
            case promql.Call():
                for argument in node.args:
                    yield from walk(argument)
            case promql.BinaryExpr():
                yield from walk(node.lhs)
                yield from walk(node.rhs)

    for selector in walk(promql.parse(query)):
        assert selector.name
        yield selector.name, [(one.name, one.value) for one in selector.matchers.matchers]


def grouping_labels(query: str) -> set[str]:
    """Labels that a query groups or joins by."""
    return {
        name.strip()
        for group in re.findall(r"\b(?:by|on) ?\(([^)]*)\)", query)
        for name in group.split(",")
        if name.strip()
    }


class Evaluation:
    """One query's."""

    def __init__(self, database: Database, *, comparisons_hold: bool) -> None:
        self._database = database
        self._comparisons_hold = comparisons_hold

    def of(self, node: object) -> Series:
        """The series of one expression."""
        match node:
            case promql.NumberLiteral():
                return {frozenset()}
            case promql.ParenExpr():
                return self.of(node.expr)
            case promql.VectorSelector():
                return self._database.select(node)
            case promql.MatrixSelector():
                return self._database.select(node.vector_selector)
            case promql.AggregateExpr():
                by = set(node.modifier.labels) if node.modifier is not None else set()
                return {_only(labels, by) for labels in self.of(node.expr)}
            case promql.Call():
                return self._called(node)
            case promql.BinaryExpr():
                return self._combined(node)
        raise AssertionError(f"{type(node).__name__} is not known here: {node}")

    def _called(self, node: promql.Call) -> Series:
        name = node.func.name
        if name in ("vector", "time"):
            return {frozenset()}
        if name == "absent":
            return set() if self.of(node.args[0]) else {frozenset()}
        if name == "histogram_quantile":
            found = self.of(node.args[1])
            assert all("le" in dict(labels) for labels in found), "a quantile needs le"
            return {_without(labels, {"le"}) for labels in found}
        assert name in OVER_RANGES, f"{name} is not known here"
        return self.of(node.args[0])

    def _combined(self, node: promql.BinaryExpr) -> Series:
        left, right, operator = self.of(node.lhs), self.of(node.rhs), str(node.op)
        matching = node.modifier.matching if node.modifier is not None else None

        def key(labels: Labels) -> Labels:
            return labels if matching is None else _only(labels, set(matching.labels))

        if operator == "or":
            return left | {labels for labels in right if key(labels) not in {key(other) for other in left}}
        if _is_scalar(node.rhs):
            return left if operator in ARITHMETIC or self._comparisons_hold else set()
        assert operator in COMPARISONS | ARITHMETIC | {"and"}, f"{operator} is not known here"
        joined = {labels for labels in left if key(labels) in {key(other) for other in right}}
        return joined if operator not in COMPARISONS or self._comparisons_hold else set()


def _is_scalar(node: object) -> bool:
    return isinstance(node, promql.NumberLiteral) or (isinstance(node, promql.Call) and node.func.name == "time")


def _matches(matcher: promql.Matcher, labels: dict[str, str]) -> bool:
    value = labels.get(matcher.name, "")
    match matcher.op:
        case promql.MatchOp.Equal:
            return value == matcher.value
        case promql.MatchOp.NotEqual:
            return value != matcher.value
        case promql.MatchOp.Re:
            return re.fullmatch(matcher.value, value) is not None
        case promql.MatchOp.NotRe:
            return re.fullmatch(matcher.value, value) is None
    raise AssertionError(f"{matcher.op} is not known here")


def _only(labels: Labels, names: set[str]) -> Labels:
    return frozenset(pair for pair in labels if pair[0] in names)


def _without(labels: Labels, names: set[str]) -> Labels:
    return frozenset(pair for pair in labels if pair[0] not in names)
