"""The file of values: what it may hold, with defaults. Sizes are Kubernetes quantities, times are in the unit named.

An unknown key, a wrong type and a value out of range are errors; `values_file.py` words them. Rules that need more
than one field are in `consistency.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from paceline.deploy.names import LABEL, LABEL_1123, PART, PREFIX, SUBDOMAIN, SUBDOMAIN_WORDS
from paceline.deploy.quantity import MOST, to_bytes

Platform = Literal["kubernetes", "kserve", "kserve-llm"]
Runtime = Literal["paceline", "vllm"]
MOST_GPUS = 8  # of a pod, and of a node
AccessMode = Literal["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]

_LABEL = rf"^{LABEL}$"
Replicas = Annotated[int, Field(ge=1, le=2**31 - 1)]  # an int32 of Kubernetes
DnsLabel = Annotated[str, Field(pattern=_LABEL, max_length=63)]
DnsName = Annotated[str, Field(pattern=rf"^{SUBDOMAIN}$", max_length=253)]
LabelKey = Annotated[str, Field(pattern=rf"^({PREFIX})?{PART}$", max_length=317)]
LabelValue = Annotated[str, Field(pattern=rf"^({PART})?$")]
ResourceName = Annotated[str, Field(pattern=rf"^{PREFIX}{PART}$", max_length=317)]
_QUANTITY = r"^[1-9][0-9]*(Mi|Gi|Ti|M|G|T)$"
_VERSION = r"^[0-9]+\.[0-9]+(\.[0-9]+)?$"

_W = "A-Za-z0-9_"  # \w of this library is of every alphabet
_FOLDER = rf"^[{_W}][{_W}./-]*$"
# A registry's port is no tag; what follows the last slash must name a version, so that a rollback means something.
_IMAGE = rf"^[a-z0-9][{_W}.:/-]*/?[{_W}.-]+(:[{_W}][{_W}.-]*|@sha256:[0-9a-f]{{64}})$"
_SECRET_KEY = r"^[-._a-zA-Z0-9]+$"
_URL = r'^https?://[^\s{}<>"\\^`|]+$'
_HOSTNAME = rf"^(\*\.)?{LABEL_1123}(\.{LABEL_1123})+$"

IN_WORDS = {  # for messages, instead of the patterns
    _LABEL: "lower-case letters, digits and '-', beginning with a letter",
    _QUANTITY: "a whole number with Mi, Gi, Ti, M, G or T, such as 16Gi (1536Gi, not 1.5Ti)",
    rf"^{SUBDOMAIN}$": SUBDOMAIN_WORDS,
    rf"^({PREFIX})?{PART}$": "a label's key: letters, digits, '-', '_' and '.', perhaps after a domain and '/'",
    rf"^({PART})?$": "a label's value: at most 63 letters, digits, '-', '_' and '.'",
    rf"^{PREFIX}{PART}$": "a domain and a name, such as nvidia.com/gpu",
    _VERSION: "a version, such as 0.32.0",
    _FOLDER: "a folder: letters, digits, '_', '.', '-' and '/'",
    _IMAGE: "an image with a version or a digest, such as registry.example.com/paceline:0.1.0",
    _SECRET_KEY: "a key of a Secret: letters, digits, '-', '_' and '.'",
    _URL: "a URL, such as http://prometheus-operated.monitoring.svc:9090",
    _HOSTNAME: "a name of DNS with a domain, such as llm.example.com",
}


def _stays_inside(path: str) -> str:
    if any(part in ("", ".", "..") for part in path.split("/")) or path.startswith(("~", "-")):
        raise ValueError("it must stay inside its parent: no '..', '.', or empty part, and not from / or ~")
    return path


def _is_a_source(text: str) -> str:
    if not text.isprintable() or text != text.strip():
        raise ValueError("it must be one line of text, without spaces around it")
    if "://" in text:
        raise ValueError("give the repo id itself, such as org/name, and not an address")
    return _stays_inside(text)


def _is_a_key(key: str) -> str:
    if key == "." or key.startswith(".."):
        raise ValueError("it is a key of a Secret, which is no '.' and does not begin with '..'")
    return key


def _has_a_version(image: str) -> str:
    if "@" not in image and image.endswith(":latest"):
        raise ValueError("it names no version: what latest is changes, and no rollback finds the last one")
    return image


def _has_no_user(url: str) -> str:
    if "@" in url.split("://", 1)[1].split("/", 1)[0]:
        raise ValueError("it must hold no user and no password: manifests are read by many")
    return url


def _fits(quantity: str) -> str:
    if to_bytes(quantity) > MOST:
        raise ValueError("it is more than any machine has")
    return quantity


Quantity = Annotated[str, Field(pattern=_QUANTITY, max_length=24), AfterValidator(_fits)]
Folder = Annotated[str, Field(pattern=_FOLDER), AfterValidator(_stays_inside)]  # on the claim
Source = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_is_a_source)]
Image = Annotated[str, Field(pattern=_IMAGE, max_length=512), AfterValidator(_has_a_version)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Model(_Part):
    source: Source  # a repo id or a known name: what `paceline models pull` takes
    served_name: str | None = None  # in the API; the deployment's name if not given
    folder: Folder | None = None  # on the claim; else from `source`


class Draft(_Part):
    source: Source
    folder: Folder | None = None


class Vllm(_Part):
    """Used with --runtime vllm only."""

    image: Image | None = None  # vllm/vllm-openai of `version` if not given
    version: Annotated[str, Field(pattern=_VERSION)] | None = None  # of what is in it; its tag's
    args: tuple[str, ...] = Field(default=(), strict=False)  # more of its options, in its own spelling


class Resources(_Part):
    gpus: Annotated[int, Field(ge=0, le=MOST_GPUS)] | None = None  # a pod; what the server uses if not given
    gpu_resource: ResourceName = "nvidia.com/gpu"
    cpu: Annotated[int, Field(ge=1, le=1024)] = 8  # requested, in cores
    memory: Quantity = "64Gi"  # requested and limit; /dev/shm counts towards it
    shm: Quantity = "16Gi"


class Claim(_Part):
    existing_claim: DnsName | None = None  # else one is made
    size: Quantity = "200Gi"
    storage_class: DnsName | None = None  # the cluster's default if not given
    access_mode: AccessMode = "ReadWriteOnce"


class ModelsClaim(Claim):
    download: bool = True  # by a Job, from the model hub; off: the folders are there already


class CompileCacheClaim(Claim):
    size: Quantity = "20Gi"


class Storage(_Part):
    models: ModelsClaim = ModelsClaim()
    compile_cache: CompileCacheClaim = CompileCacheClaim()


class SecretKey(_Part):
    name: DnsName
    key: Annotated[str, Field(pattern=_SECRET_KEY, max_length=253), AfterValidator(_is_a_key)]


class Secrets(_Part):
    hub_token: SecretKey | None = None
    api_key: SecretKey | None = None


class Scaling(_Part):
    """By KEDA, on waiting requests and use of the KV cache; never on GPU utilisation, which says nothing about load."""

    min_replicas: Replicas = 1
    max_replicas: Replicas
    prometheus_url: Annotated[str, Field(pattern=_URL, max_length=2000), AfterValidator(_has_no_user)]
    waiting_per_replica: Annotated[int, Field(ge=1)] = 4
    kv_cache_usage: Annotated[float, Field(gt=0, lt=1)] = 0.8
    scale_down_minutes: Annotated[int, Field(ge=1, le=60)] = 15


class Rollout(_Part):
    startup_minutes: Annotated[int, Field(ge=1, le=180)] = 60  # until the model must be loaded
    longest_request_seconds: Annotated[int, Field(ge=10, le=7200)] = 600
    pre_stop_seconds: Annotated[int, Field(ge=1, le=120)] = 15  # until every proxy has forgotten the pod


class Gateway(_Part):
    name: DnsLabel
    namespace: DnsLabel


class Route(_Part):
    gateway: Gateway
    hostname: Annotated[str, Field(pattern=_HOSTNAME, max_length=253)]


class Network(_Part):
    """Who may reach the pods: their own namespace, the route's gateway, Prometheus, and these."""

    prometheus_namespace: DnsLabel = "monitoring"
    allow_namespaces: tuple[DnsLabel, ...] = Field(default=(), strict=False)


class Monitoring(_Part):
    enabled: bool = True
    labels: dict[LabelKey, LabelValue] = {"release": "kube-prometheus-stack"}  # that the Prometheus selects by
    interval_seconds: Annotated[int, Field(ge=5, le=300)] = 15
    min_acceptance_rate: Annotated[float, Field(gt=0, lt=1)] = 0.3
    max_waiting: Annotated[int, Field(ge=1)] = 32


class Toleration(_Part):
    key: LabelKey
    operator: Literal["Exists", "Equal"] = "Exists"
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class Scheduling(_Part):
    node_selector: dict[LabelKey, LabelValue] = {}
    tolerations: tuple[Toleration, ...] = Field(default=(), strict=False)
    priority_class: DnsName | None = None
    service_account: DnsLabel | None = None


class Security(_Part):
    user: Annotated[int, Field(ge=1, le=2**31 - 1)] = 10001  # and group; owns the claims through fsGroup


class Values(_Part):
    name: Annotated[str, Field(pattern=_LABEL, max_length=40)]  # other names are made from it
    namespace: DnsLabel
    image: Image  # of Paceline: the server, and the download and waiting steps of either runtime
    vllm: Vllm = Vllm()
    model: Model
    draft: Draft | None = None
    engine: dict[str, Any] = {}  # as `paceline serve` takes it, in its (and vLLM's) names
    resources: Resources = Resources()
    storage: Storage = Storage()
    secrets: Secrets = Secrets()
    replicas: Replicas = 1  # where nothing scales
    scaling: Scaling | None = None
    rollout: Rollout = Rollout()
    route: Route | None = None
    network: Network = Network()
    monitoring: Monitoring = Monitoring()
    scheduling: Scheduling = Scheduling()
    security: Security = Security()

    @property
    def most_replicas(self) -> int:
        return self.scaling.max_replicas if self.scaling else self.replicas
