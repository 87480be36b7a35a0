"""An optimizer for scripts in which it does not matter which: torch's own ones import the compiler."""

DESCENT = """
import torch

for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
    method = getattr(torch.optim.Optimizer, name)
    setattr(torch.optim.Optimizer, name, getattr(method, "__wrapped__", method))

class Descent(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight -= group["lr"] * weight.grad
"""
"""The head of a script. The compiler costs each rank two seconds of a processor, at its start and at its end."""
