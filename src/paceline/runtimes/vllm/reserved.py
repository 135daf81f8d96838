"""Options of vLLM that a user cannot give: Paceline writes them, or health checks and clients would not find vLLM."""

from __future__ import annotations

_TLS = "vLLM would answer over TLS, and health checks would fail; TLS is that of Paceline's server, or of a gateway"
_SPECULATION = "give it as a key of the speculative configuration"
# What Paceline writes itself, beside the arguments that both have.
_WRITTEN = frozenset({"model", "host", "port", "uds", "served-model-name", "speculative-config"})
_REASONS = {
    "api-key": (
        "Paceline makes vLLM a key of its own; those of clients are in --api-key-file, or in the environment, "
        "PACELINE_API_KEYS"
    ),
    "uds": "Paceline and health checks reach vLLM over TCP; leave it out",
    **dict.fromkeys(
        ("ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "ssl-cert-reqs", "ssl-ciphers", "enable-ssl-refresh"), _TLS
    ),
    "grpc": "vLLM would serve gRPC in place of its HTTP API, and health checks would fail; leave it out",
    "spec-model": _SPECULATION,
    "spec-method": _SPECULATION,
    "spec-tokens": _SPECULATION,
    "device-memory-utilization": "it is another name of gpu_memory_utilization; give that",
    "help": "vLLM would print its help and end; leave it out",
}


def why_reserved(name: str, shared: frozenset[str], label: str = "") -> str | None:
    """The end of a sentence about an option, None where it may be given. `shared`: arguments that both have.

    `label`: what its user calls the place where it stands.
    """
    plain = name.removeprefix("no-")
    if plain in _REASONS:
        return _REASONS[plain]
    if plain in _WRITTEN or plain in shared:
        return f"is written by Paceline; {_own_form(plain, name != plain, label)}"
    return None


def _own_form(name: str, is_negative: bool, label: str) -> str:
    """How the same is said beside the place called `label`."""
    argument = name.replace("-", "_")
    match label:
        case "--vllm-args" if name == "model":
            return "give it as MODEL"
        case "--vllm-args":
            return f"give --{'no-' * is_negative}{name} beside --vllm-args"
        case "vllm.args":
            return f"set engine.{argument}{': false' * is_negative}"
        case _:
            return "give it as an argument of its own"
