"""Forward-mode derivatives: rules for common functions, and kernels that can be differentiated twice."""

from fsvi.functions.forward_mode import rules
from fsvi.functions.forward_mode.dual import Dual
from fsvi.functions.forward_mode.kernels import plain_kernels

__all__ = ["Dual", "plain_kernels", "rules"]
