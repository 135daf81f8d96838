"""What stands around the workload: network, storage, disruption, monitoring, scaling."""
