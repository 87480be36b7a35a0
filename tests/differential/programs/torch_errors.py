"""Warnings as errors, chained exceptions, exit handlers, signals and the exit code of a training that raises."""

import atexit
import faulthandler
import signal
import sys
import threading
import warnings

import torch

warnings.simplefilter("error")
atexit.register(print, "at exit")
signal.signal(signal.SIGUSR1, lambda number, frame: print("told", number, frame.f_code.co_name))
signal.signal(signal.SIGTERM, lambda *_: print("saves"))
print(
    sorted(number.name for number in signal.Signals if callable(signal.getsignal(number))),
    faulthandler.is_enabled(),
)
threading.excepthook = lambda told: print("thread:", told.exc_type.__name__)
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
print(threading.active_count(), sys.gettrace(), sys.getprofile())
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for at in range(3):
    signal.raise_signal(signal.SIGUSR1 if at < 2 else signal.SIGTERM)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
try:
    model(torch.ones(1, 3))
except RuntimeError as error:
    raise SystemError("stopped") from error
