"""Strict checks of manifests, offline: `paceline deploy check FILES`.

    check_files(paths, crds=..., previous=...) -> Report

Four layers, each with what the next cannot see: built-in kinds against Kubernetes' own schemas (kubernetes-validate);
custom resources against the CRDs that the user brings, with their CEL rules; rules that no schema has, over every pod
(pods.py) and KServe's webhooks (kserve.py); and, with --server, the cluster's dry run (server.py).
"""

from paceline.deploy.check.findings import Finding, Report
from paceline.deploy.check.run import check_files

__all__ = ["Finding", "Report", "check_files"]
