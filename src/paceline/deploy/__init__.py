"""From one file of values to Kubernetes manifests, and checks of manifests and of the pod itself (docs/kubernetes.md).

    load_values(file, preset=..., overrides=...) -> Values     one ConfigurationError that lists every problem
    render(values, platform, runtime) -> Rendered              manifests in a stable order; nothing is written
    write_files(rendered, folder) -> Written                   all of them or none; only over what is ours
    check_files(paths, ...) -> Report                          strict, offline
    diagnose(...) -> list[Finding]                             what is wrong inside a pod

Contract
- The same values give the same bytes. Nothing here talks to a cluster, but for `check --server`, which runs kubectl.
- Secrets are referred to by name and never held.
- Where a cluster would refuse or break later (quotas, webhooks, quoting, rollouts that wait for GPUs nobody has), the
  values are refused here.
"""
