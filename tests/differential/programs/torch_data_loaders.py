"""DataLoaders of every kind: workers by fork and spawn, persistent ones, iterable sets, batches that end early, errors in a worker."""

import pickle

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class Squares(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, at):
        if at == 7 and get_worker_info() is not None and get_worker_info().num_workers == 3:
            raise ValueError("no such sample")
        return torch.tensor(at * at)


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        yield from range(info.id if info else 0, 9, info.num_workers if info else 1)


def main():
    for options in (
        {},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 1, "multiprocessing_context": "spawn"},
    ):
        loader = DataLoader(Squares(), batch_size=4, **options)
        for _ in range(2):
            print(options, [batch.tolist() for batch in loader])
        one = iter(loader)
        print(next(one).tolist(), len(loader), type(one).__name__, hasattr(one, "__wrapped__"))
        del one
    print([batch.tolist() for batch in DataLoader(Stream(), batch_size=2, num_workers=2)])
    print(len(pickle.dumps(DataLoader(Squares()))))
    try:
        list(DataLoader(Squares(), num_workers=3))
    except ValueError as error:
        print(str(error).splitlines()[0], str(error).splitlines()[-1])


if __name__ == "__main__":
    main()
