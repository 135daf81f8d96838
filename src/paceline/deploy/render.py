"""render: values -> manifests, in the order in which they are best applied. Nothing is read or written."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.deploy.command import server_command
from paceline.deploy.consistency import check_consistency
from paceline.deploy.gpus import with_gpus
from paceline.deploy.known_shapes import length_note
from paceline.deploy.objects.disruption import disruption_budget
from paceline.deploy.objects.monitoring import prometheus_rule, service_monitor
from paceline.deploy.objects.network import http_route, network_policy, service
from paceline.deploy.objects.scaling import scaled_object
from paceline.deploy.objects.storage import claims, download_job
from paceline.deploy.platforms.kserve import inference_service, serving_runtime
from paceline.deploy.platforms.kserve_llm import llm_inference_service
from paceline.deploy.platforms.kubernetes import deployment
from paceline.deploy.pod import Json
from paceline.deploy.secrecy import nothing_secret_in_errors, redacted, secrets_of
from paceline.deploy.target import Target
from paceline.deploy.values import Platform, Runtime, Values


@dataclass(frozen=True, slots=True)
class Rendered:
    manifests: tuple[Json, ...]
    notes: tuple[str, ...]  # for the user: what the runtime leaves out, and what must be there first

    def files(self) -> dict[str, Json]:
        """By file name; kinds that occur twice carry their object's name."""
        kinds = [manifest["kind"] for manifest in self.manifests]
        return {_file_name(manifest, alone=kinds.count(manifest["kind"]) == 1): manifest for manifest in self.manifests}


def render(values: Values, platform: Platform, runtime: Runtime) -> Rendered:
    """Raises ConfigurationError where the values contradict each other or ask for what the runtime cannot do."""
    secrets = secrets_of(values.model_dump())
    with nothing_secret_in_errors(secrets):
        rendered = _render(values, platform, runtime)
    return Rendered(rendered.manifests, tuple(redacted(note, secrets) for note in rendered.notes))


def _render(values: Values, platform: Platform, runtime: Runtime) -> Rendered:
    target = Target(values, platform, runtime)
    check_consistency(target)
    server = server_command(target)
    target = with_gpus(target, server)
    workload = {
        "kubernetes": lambda: [deployment(target, server)],
        "kserve": lambda: [serving_runtime(target, server), inference_service(target)],
        "kserve-llm": lambda: [llm_inference_service(target, server)],
    }[platform]()
    found: list[Json | None] = [
        *claims(target),
        download_job(target),
        network_policy(target),
        *workload,
        service(target),
        http_route(target),
        disruption_budget(target),
        service_monitor(target),
        prometheus_rule(target),
        scaled_object(target),
    ]
    manifests = tuple(manifest for manifest in found if manifest is not None)
    return Rendered(manifests, (*server.notes, *_needs(target)))


def _file_name(manifest: Json, *, alone: bool) -> str:
    kind = manifest["kind"].lower()
    return f"{kind}.yaml" if alone else f"{kind}-{manifest['metadata']['name']}.yaml"


def _adaptation(target: Target) -> list[str]:
    """Paceline adapts K by itself; vLLM by a schedule alone."""
    config = target.values.engine.get("speculative_config")
    if target.runtime != "vllm" or not isinstance(config, dict) or "num_speculative_tokens_per_batch_size" in config:
        return []
    return [
        "vLLM drafts as much with many requests as with one, which then costs more than it gives. Give "
        "engine.speculative_config.num_speculative_tokens_per_batch_size, as `paceline deploy values PRESET --runtime "
        "vllm` does."
    ]


def _needs(target: Target) -> list[str]:
    values = target.values
    secrets = [secret for secret in (values.secrets.hub_token, values.secrets.api_key) if secret is not None]
    too_long = length_note(target)
    notes = [] if too_long is None else [too_long]
    notes += [
        f"Needs the Secret '{secret.name}' with the key '{secret.key}' in namespace '{values.namespace}': "
        f"kubectl -n {values.namespace} create secret generic {secret.name} --from-literal={secret.key}=…"
        for secret in secrets
    ]
    notes += _adaptation(target)
    for field, claim in (("models", values.storage.models), ("compile_cache", values.storage.compile_cache)):
        if claim.existing_claim is not None:
            notes.append(f"Needs the claim '{claim.existing_claim}' in namespace '{values.namespace}'.")
            unused = [name for name in ("size", "storage_class") if name in claim.model_fields_set]
            if unused:
                notes.append(f"storage.{field}: the claim is used as it is; {' and '.join(unused)} changes nothing.")
    if values.route is None:
        notes.append("No route: the API is reachable inside the cluster only. Give route.gateway and route.hostname.")
    elif target.serves_tls:
        notes.append(
            "route.hostname changes nothing here: the route is KServe's, for every name that its gateway takes."
        )
    if values.secrets.api_key is None and values.route is not None:
        notes.append("The route is open to everyone who reaches its gateway. Give secrets.api_key to ask for a key.")
    return notes
