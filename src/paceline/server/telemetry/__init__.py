"""What the API process knows of its requests: latencies, errors, live rates; for /metrics, the log and traces."""
