"""``python -m fuzz --seconds 600 [--only TARGET]… [--seed N] [--resume]``: one line of JSON for each target."""

import argparse
import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

PRODUCT = ["distconsole", "distconsole_agent", "distconsole_training"]


def main() -> int:
    """Try each target in a process of its own; return 1 if something failed."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="of a processor, for each target"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="TARGET", help="may be repeated"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--resume", action="store_true", help="go on with the inputs that an earlier call kept"
    )
    parser.add_argument(
        "--into", type=Path, default=Path("build/fuzz"), help="for what is kept, and failures"
    )
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument(
        "--replay", type=Path, help="try this file alone, by the one target of --only"
    )
    asked = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if not asked.replay:
            with contextlib.suppress(ImportError):
                stack.enter_context(_guidance())
        from fuzz.targets import TARGETS
    if unknown := set(asked.only) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}; known: {', '.join(TARGETS)}")
    if asked.replay:
        return _replay(asked.only[0], asked.replay)
    if not asked.resume:
        shutil.rmtree(asked.into, ignore_errors=True)
    return _try_all(asked, asked.only or list(TARGETS))


def _guidance() -> contextlib.AbstractContextManager[object]:
    """Have what is imported within it tell atheris where it comes; raises ImportError without atheris."""
    import atheris

    instrumented: contextlib.AbstractContextManager[object] = atheris.instrument_imports(
        include=PRODUCT
    )
    return instrumented


def _replay(name: str, path: Path) -> int:
    from fuzz.judging import judge
    from fuzz.targets import TARGETS

    failure = judge(TARGETS[name], TARGETS[name].read_case(path))
    print(failure.text if failure else "it is as promised")
    return int(failure is not None)


def _try_all(asked: argparse.Namespace, names: list[str]) -> int:
    """Fork for each target: what is imported is instrumented once."""
    failed, going = False, dict[int, str]()
    while names or going:
        while names and len(going) < asked.jobs:
            name = names.pop(0)
            sys.stdout.flush()
            pid = os.fork()
            if not pid:
                _try_one(asked, name)
            going[pid] = name
        pid, status = os.wait()
        name, code = going.pop(pid), os.waitstatus_to_exitcode(status)
        failed |= code != 0
        if code not in (0, 1):
            print(json.dumps({"target": name, "ended": code}), flush=True)
    return int(failed)


def _try_one(asked: argparse.Namespace, name: str) -> None:
    from fuzz.campaign import Campaign
    from fuzz.targets import TARGETS

    campaign = Campaign(TARGETS[name], asked.into, asked.seconds, asked.seed)
    try:
        campaign.run()
    except BaseException:  # noqa: BLE001 - this process is to end here, whatever happens
        sys.excepthook(*sys.exc_info())
        os._exit(3)
    campaign.finish()


if __name__ == "__main__":
    sys.exit(main())
