"""Two models, two optimizers, several losses a step, a closure for LBFGS, a loss without a gradient, and evaluation between."""

import torch

torch.manual_seed(0)
one, two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
first, second = torch.optim.SGD(one.parameters(), lr=0.1), torch.optim.Adam(two.parameters())
for at in range(4):
    hidden = one(torch.full((2, 4), 0.1 * at))
    judged = two(hidden.detach()).square().mean()
    judged.backward()
    second.step()
    torch.autograd.backward([two(hidden).mean(), hidden.square().mean()])
    first.step()
    with torch.no_grad():
        print(at, f"{two(one(torch.ones(1, 4))).item():.7f}", judged.requires_grad)
    first.zero_grad(set_to_none=False)
    second.zero_grad()
lbfgs = torch.optim.LBFGS(two.parameters(), max_iter=4)


def closure():
    lbfgs.zero_grad()
    loss = two(torch.ones(1, 4)).square().mean()
    loss.backward()
    return loss


print(f"{lbfgs.step(closure).item():.7f} {closure().item():.7f}")
try:
    torch.ones(1).sum().backward()
except RuntimeError as error:
    print(str(error))
