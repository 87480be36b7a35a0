"""torch.func over a model and over a loss: per-sample gradients, jacobians, a functional optimizer."""

import torch
from torch.func import functional_call, grad, jacrev, vmap

torch.manual_seed(0)
model = torch.nn.Linear(3, 2)
parameters = dict(model.named_parameters())


def loss(values, x):
    return functional_call(model, values, (x.unsqueeze(0),)).square().mean()


batch = torch.randn(4, 3)
for name, value in vmap(grad(loss), (None, 0))(parameters, batch).items():
    print(name, value.tolist())
print(jacrev(lambda x: functional_call(model, parameters, (x,)))(batch[0]).tolist())
values = {name: each.detach().clone() for name, each in parameters.items()}
for _ in range(5):
    found = vmap(grad(loss), (None, 0))(values, batch)
    values = {name: values[name] - 0.1 * found[name].mean(0) for name in values}
print({name: each.tolist() for name, each in values.items()})
model(batch).square().sum().backward(create_graph=True)
print(torch.autograd.grad(model.weight.grad.square().sum(), [model.bias]))
