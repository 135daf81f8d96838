"""What a check found: an error would be refused or fail, a warning works until the day it does not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from paceline.deploy.secrecy import redacted

Json = dict[str, Any]
Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    path: str  # inside the object, as jsonpath: $.spec.template
    message: str


@dataclass(frozen=True, slots=True)
class Document:
    """One object of one file."""

    file: str
    content: Json  # masked: what every rule reads, and may print
    original: Json  # as it stands in the file, for the rules that look for secrets and print none
    is_built: bool = False  # by kustomize, from objects that may be among the files as well

    @property
    def kind(self) -> str:
        return str(self.content.get("kind"))

    @property
    def label(self) -> str:
        metadata = self.content.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        return redacted(f"{self.file}: {self.kind}" + ("" if name is None else f"/{name}"))


@dataclass(slots=True)
class Report:
    findings: list[tuple[Document, Finding]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what could not be checked, and how it could be
    num_documents: int = 0
    hidden: frozenset[str] = frozenset()  # secrets of the files, which nothing that is printed may hold

    def add(self, document: Document, findings: list[Finding]) -> None:
        self.findings += [
            (document, replace(finding, path=redacted(finding.path), message=redacted(finding.message, self.hidden)))
            for finding in findings
        ]

    def note(self, *notes: str) -> None:
        self.notes += [redacted(each, self.hidden) for each in notes]

    def count(self, level: Level) -> int:
        return sum(finding.level == level for _, finding in self.findings)


def error(path: str, message: str) -> Finding:
    return Finding("error", path, message)


def warning(path: str, message: str) -> Finding:
    return Finding("warning", path, message)
