"""Strict checks of manifests, offline: `paceline deploy check FILES`.

    check_files(paths, crds=..., previous=...) -> Report

Layers, each with what the one before cannot see:

    builtin.py, crds.py                       schemas: Kubernetes' own, and the CRDs that the user brings, with CEL
    field_values.py, object_names.py,         what the API server refuses beyond its schemas
    quantities.py, container_rules.py
    pods.py, server_commands.py, secrets.py,  what it takes, and what then fails, leaks or never fires
    promql.py
    engine_args.py and its two                what vLLM, or Paceline, would not start with
    kserve.py, llm_template.py                KServe's webhooks, its Go template and its shell
    services.py, claims.py, together.py,      rules over several objects, or over files
    kustomize.py
    server.py                                 with --server, the cluster's dry run
"""

from paceline.deploy.check.findings import Finding, Report
from paceline.deploy.check.run import check_files

__all__ = ["Finding", "Report", "check_files"]
