"""Manifests as YAML text. folder.py writes them to files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from paceline.deploy.render import Rendered

HEADER = (
    "# Rendered by `paceline deploy render`: change the values and render again. Overlays have folders of their own.\n"
)


class _Dumper(yaml.SafeDumper):
    """No anchors: what is equal by chance is written out twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def as_yaml(document: Mapping[str, Any]) -> str:
    """Keys in the order of the document; one line a string, so that a changed option is one changed line."""
    text: str = yaml.dump(
        dict(document), Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=10_000, allow_unicode=True
    )
    return text


def as_stream(rendered: Rendered) -> str:
    return HEADER + "---\n".join(as_yaml(manifest) for manifest in rendered.manifests)
