"""Other engines, driven by Paceline's configuration. Each has a folder; the only one is vLLM."""
