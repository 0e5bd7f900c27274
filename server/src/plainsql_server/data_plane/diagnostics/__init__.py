"""What the service tries out in a customer's database on request: probes, the benchmark, the storage test."""
