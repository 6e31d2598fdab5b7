"""The engine-free core: features, replay, model, gate sessions, policies, step-time model."""
