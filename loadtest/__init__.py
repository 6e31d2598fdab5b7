"""Load tests over HTTP: workloads, clients, reports. Knows nothing about SGLang's insides."""
