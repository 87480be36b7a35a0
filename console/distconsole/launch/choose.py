"""Which launcher a script wants, and why. A pure rule: it starts nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from distconsole.errors import PlanError
from distconsole.launch.engines import MPI, Engines, has_gloo
from distconsole.launch.script import ScriptTraits
from distconsole.model.names import HostName
from distconsole.model.requests import LauncherName, PassArgs, Run

CAN_LOSE_HOSTS = (LauncherName.TORCHRUN,)
ELASTIC = "HOROVOD_ELASTIC"
NOT_ELASTIC = "the ranks of mpirun are not elastic"


@dataclass(frozen=True, slots=True)
class Choice:
    """The launcher, the reason in one line, and the arguments that the script wants added.

    Attributes:
        elastic: Whether Horovod's driver says which ranks there are, and outlives hosts.
    """

    launcher: LauncherName
    why: str
    pass_args: PassArgs | None = None
    elastic: bool = False


def choose_launcher(request: Run, traits: ScriptTraits) -> Choice:
    """Return how to start the script, as far as that is known before a host is asked.

    Raises:
        PlanError: if the job is to outlive a host, and the launcher cannot.
    """
    choice = _by_request(request, traits)
    return _outlive_hosts(choice, request.launcher) if request.may_lose_hosts else choice


def finish_choice(
    choice: Choice, request: Run, env: Mapping[str, str], engines: Mapping[HostName, Engines]
) -> Choice:
    """Return ``choice`` once it is known what the hosts have of its engines.

    Raises:
        PlanError: as ``choose_launcher``.
    """
    choice = settle_controller(choice, env, engines)
    return _outlive_hosts(choice, request.launcher) if request.may_lose_hosts else choice


def _by_request(request: Run, traits: ScriptTraits) -> Choice:
    asked, pass_args = request.launcher, request.pass_args
    if asked is not LauncherName.AUTO:
        return _elastic(Choice(asked, "asked for", pass_args), traits)
    if pass_args is not None:
        spawns = traits.spawns and pass_args is PassArgs.INIT_METHOD
        launcher = LauncherName.SINGLE if spawns else LauncherName.TORCH
        return Choice(launcher, f"--pass-args {pass_args} was given", pass_args)
    return by_traits(traits, request.arguments)


def by_traits(traits: ScriptTraits, arguments: Sequence[str] = ()) -> Choice:
    """Return how a script wants to be started with these arguments."""
    for applies, launcher, why, pass_args in _rules(traits, arguments):
        if applies:
            return _elastic(Choice(launcher, why, pass_args), traits)
    return Choice(LauncherName.TORCH, "the script names no launcher: env:// ranks")


def _rules(
    traits: ScriptTraits, arguments: Sequence[str]
) -> list[tuple[bool, LauncherName, str, PassArgs | None]]:
    """Return the rules, strongest first: whether it applies, the launcher, why, arguments to add."""
    torch, single = LauncherName.TORCH, LauncherName.SINGLE
    init_method = bool(traits.init_method and traits.rank and traits.world_size)
    return [
        (
            not traits.readable,
            torch,
            "the script cannot be read as Python here, so env:// ranks are assumed",
            None,
        ),
        (
            traits.horovod and traits.mpi,
            LauncherName.MPI,
            "the script imports Horovod and mpi4py",
            None,
        ),
        (traits.horovod, LauncherName.HOROVOD, "the script imports Horovod", None),
        (traits.mpi, LauncherName.MPI, "the script imports mpi4py", None),
        (
            _meets_by_variables(traits, arguments),
            torch,
            f"{traits.init_method} is env://, and {traits.spawn_flag}, with which the script "
            "starts its own ranks, is not given: env:// ranks",
            None,
        ),
        (
            traits.spawns and init_method,
            single,
            f"the script starts its own ranks (mp.spawn) and declares {traits.init_method}: one "
            f"process a node, told the node's number by {traits.rank}",
            PassArgs.INIT_METHOD,
        ),
        (
            traits.spawns,
            single,
            "the script starts its own ranks (mp.spawn): one process a node",
            None,
        ),
        (
            bool(traits.local_rank),
            torch,
            f"the script declares {traits.local_rank}: env:// ranks, and the argument added",
            PassArgs.TORCH_LAUNCH,
        ),
        (
            init_method,
            torch,
            f"the script declares {traits.init_method}: ranks, and the argument added",
            PassArgs.INIT_METHOD,
        ),
        (
            traits.data_parallel,
            single,
            "the script wraps its model in DataParallel: one process a node",
            None,
        ),
        (
            traits.distributed,
            torch,
            "the script uses torch.distributed: env:// ranks",
            None,
        ),
        (
            traits.slurm,
            torch,
            "the script reads SLURM_PROCID, but this is no Slurm job: env:// ranks "
            "(--slurm OPTIONS submits one)",
            None,
        ),
        (
            traits.torch,
            torch,
            "the script imports torch and names no launcher: env:// ranks",
            None,
        ),
    ]


def _meets_by_variables(traits: ScriptTraits, arguments: Sequence[str]) -> bool:
    """Whether ranks are told to meet at env:// by a script that starts its own only with another flag."""
    if not (traits.spawn_flag and traits.init_method) or traits.spawn_flag in arguments:
        return False
    words = " ".join(arguments).replace(f"{traits.init_method}=", f"{traits.init_method} ")
    return f"{traits.init_method} env://" in words


def _elastic(choice: Choice, traits: ScriptTraits) -> Choice:
    """Return ``choice`` for a script that may use hvd.elastic, which MPI has no part in."""
    if not traits.elastic:
        return choice
    if choice.launcher is LauncherName.HOROVOD:
        return replace(choice, why=f"{choice.why}, elastic (hvd.elastic)", elastic=True)
    if choice.launcher is LauncherName.MPI:
        return replace(choice, why=f"{choice.why}; {NOT_ELASTIC}")
    return choice


def _outlive_hosts(choice: Choice, asked: LauncherName) -> Choice:
    """Return ``choice`` for a job that is to outlive a host (``--nnodes MIN:MAX``).

    Raises:
        PlanError: if its launcher cannot.
    """
    if choice.launcher in CAN_LOSE_HOSTS or choice.elastic:
        return choice
    if asked is not LauncherName.AUTO or choice.launcher is not LauncherName.TORCH:
        raise PlanError(
            f"--nnodes MIN:MAX needs a launcher that can lose a host, and {choice.launcher} cannot",
            "give --launcher torchrun, or leave --nnodes out",
        )
    if choice.pass_args is not None:
        raise PlanError(
            "--nnodes MIN:MAX needs torchrun, which adds no arguments to the script's own "
            f"(--pass-args {choice.pass_args})",
            "give --launcher torchrun if the script also reads RANK and LOCAL_RANK",
        )
    return Choice(LauncherName.TORCHRUN, "--nnodes MIN:MAX: torchrun can lose a host")


def engines_needed(
    choice: Choice, traits: ScriptTraits, env: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the engines (``horovod``, ``mpi``) that every host must have for this."""
    match choice.launcher:
        case LauncherName.HOROVOD:
            return ("horovod", "mpi") if _wants_mpi(env) else ("horovod",)
        case LauncherName.MPI:
            return ("mpi", "horovod") if traits.horovod else ("mpi",)
        case _:
            return ()


def settle_controller(
    choice: Choice, env: Mapping[str, str], engines: Mapping[HostName, Engines]
) -> Choice:
    """Return ``choice``, or mpirun in place of Horovod's own start where that needs MPI.

    ``HOROVOD_ELASTIC`` says whether the ranks are elastic where the script does not show it.
    """
    if choice.launcher is not LauncherName.HOROVOD:
        return choice
    choice = _set_elastic(choice, env.get(ELASTIC))
    if _wants_mpi(env):
        why = f"{choice.why}; HOROVOD_CONTROLLER=mpi"
    elif not has_gloo(engines):
        why = f"{choice.why}; Horovod there was built without Gloo"
    else:
        return choice
    if choice.elastic:
        why = f"{why}; {NOT_ELASTIC}"
    return Choice(LauncherName.MPI, why, choice.pass_args)


def _set_elastic(choice: Choice, told: str | None) -> Choice:
    elastic = choice.elastic if told is None else told.strip() not in ("", "0")
    if elastic == choice.elastic:
        return choice
    return replace(choice, why=f"{choice.why}; {ELASTIC}={told}", elastic=elastic)


def _wants_mpi(env: Mapping[str, str]) -> bool:
    return env.get("HOROVOD_CONTROLLER", "").lower() == MPI
