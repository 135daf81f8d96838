"""Arguments of the servers in containers: would the engine start with them?

vLLM's are read by the tables and rules of runtimes/vllm (engine_args_vllm.py), those of `paceline serve` and of
Paceline's other commands by the list of its options (engine_args_paceline.py). Other programs are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.deploy.check.engine_args_paceline import paceline_findings
from paceline.deploy.check.engine_args_vllm import template_findings, vllm_findings
from paceline.deploy.check.findings import Finding, Json
from paceline.deploy.check.pod_specs import containers, pod_specs
from paceline.deploy.secrecy import token_in


def engine_findings(content: Json) -> Iterator[Finding]:
    """A finding that would show a secret is not shown: secrets.py tells of it."""
    return (finding for finding in _found(content) if token_in(finding.message) is None)


def _found(content: Json) -> Iterator[Finding]:
    spec = content.get("spec") or {}
    for pod in pod_specs(content):
        part = spec.get("prefill") or {} if pod.path.startswith("$.spec.prefill") else spec
        for path, container in containers(pod.spec):
            place = f"{pod.path}{path}"
            yield from paceline_findings(place, container)
            if content.get("kind") == "LLMInferenceService" and _is_templates(container):
                yield from template_findings(place, container, part, spec)
            else:
                yield from vllm_findings(place, container)


def _is_templates(container: Json) -> bool:
    """KServe's template has the command, unless the container has one of its own."""
    return container.get("name") == "main" and "command" not in container
