"""What runs the pods: a Deployment, KServe's InferenceService, or KServe's LLMInferenceService."""
