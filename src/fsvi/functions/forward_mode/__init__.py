"""Forward-mode derivatives: rules for common layers, and kernels that can be differentiated twice."""
