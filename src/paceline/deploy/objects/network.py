"""Service, HTTPRoute and NetworkPolicy."""

from __future__ import annotations

from paceline.deploy.pod import Json
from paceline.deploy.target import PORT, Target


def service(target: Target) -> Json:
    """Ours on every platform: for the route, for Prometheus and for clients inside the cluster."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": target.api_name, "namespace": target.values.namespace, "labels": target.labels()},
        "spec": {
            "type": "ClusterIP",
            "selector": target.pod_selector(),
            "ports": [{"name": "http", "port": 80, "targetPort": PORT, "protocol": "TCP"}],
        },
    }


def http_route(target: Target) -> Json | None:
    """None without a route, and where KServe makes it (with its endpoint picker)."""
    route = target.values.route
    if route is None or target.serves_tls:
        return None
    limit = f"{target.values.rollout.longest_request_seconds}s"  # gateways cut streams at 15 s or so unless told
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": target.name, "namespace": target.values.namespace, "labels": target.labels("route")},
        "spec": {
            "parentRefs": [{"name": route.gateway.name, "namespace": route.gateway.namespace}],
            "hostnames": [route.hostname],
            "rules": [
                {
                    "matches": [{"path": {"type": "PathPrefix", "value": "/v1"}}],
                    "backendRefs": [{"name": target.api_name, "port": 80}],
                    "timeouts": {"request": limit, "backendRequest": limit},
                }
            ],
        },
    }


def network_policy(target: Target) -> Json:
    """In: their own namespace, the gateway, Prometheus and those named. Out: names alone, as weights are on a claim.

    Probes come from the node, which policies admit.
    """
    values = target.values
    namespaces = {values.network.prometheus_namespace, *values.network.allow_namespaces}
    if values.route is not None:
        namespaces.add(values.route.gateway.namespace)
    peers: list[Json] = [{"podSelector": {}}]
    peers += [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
        for namespace in sorted(namespaces)
    ]
    dns = [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": target.name, "namespace": values.namespace, "labels": target.labels()},
        "spec": {
            "podSelector": {"matchLabels": target.pod_selector()},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": peers, "ports": [{"port": PORT, "protocol": "TCP"}]}],
            "egress": [{"ports": dns}],
        },
    }
