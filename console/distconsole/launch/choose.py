"""Which launcher a script wants, and why: first from the script, then from what the hosts have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from distconsole.errors import PlanError
from distconsole.grammar.secrets import mask_text
from distconsole.launch.engines import MPI, Engines, has_gloo
from distconsole.model.job import ScriptTraits
from distconsole.model.names import HostName
from distconsole.model.requests import Command, LauncherName, PassArgs, Run

MAX_OPTION_WIDTH = 44
ELASTIC = "HOROVOD_ELASTIC"
NOT_ELASTIC = "the ranks of mpirun are not elastic"


@dataclass(frozen=True, slots=True)
class Choice:
    """The launcher, why, and arguments to add; ``elastic``: Horovod's driver says which ranks there are."""

    launcher: LauncherName
    why: str
    pass_args: PassArgs | None = None
    elastic: bool = False


def choose_launcher(request: Run, traits: ScriptTraits) -> Choice:
    """Return how to start the script, as far as is known here; raises PlanError if it cannot outlive a host."""
    asked, pass_args, starter = request.launcher, request.pass_args, starter_of(request)
    if asked is not LauncherName.AUTO:
        why = f"as {starter} starts it" if starter else "asked for"
        choice = _mark_elastic(Choice(asked, why, pass_args), traits)
    elif pass_args is not None:
        spawns = traits.spawns and pass_args is PassArgs.INIT_METHOD
        launcher = LauncherName.SINGLE if spawns else LauncherName.TORCH
        choice = Choice(launcher, f"--pass-args {pass_args} was given", pass_args)
    else:
        choice = choose_by_traits(traits, request.arguments)
    return _outlive_hosts(choice, request)


def starter_of(request: Run) -> str:
    """Return the program that the launch was read from, if it says what starts the ranks; else nothing."""
    return request.command.starter if request.command is not None else ""


def command_lines(command: Command | None) -> list[str]:
    """Return each option of a command that a launch was read from, and what it becomes, as lines of a comment."""
    if command is None or not command.rows:
        return []
    rows = [(mask_text(typed), mask_text(becomes)) for typed, becomes in command.rows]
    width = min(max(len(typed) for typed, _ in rows), MAX_OPTION_WIDTH)
    lines = [f"#   {typed:{width}}  {becomes}" for typed, becomes in rows]
    return [f"# what {command.starter or 'the command'} says, and what it becomes here:", *lines]


def finish_choice(
    choice: Choice, request: Run, env: Mapping[str, str], engines: Mapping[HostName, Engines]
) -> Choice:
    """Return ``choice`` once it is known what the hosts have of its engines; raises as ``choose_launcher``."""
    return _outlive_hosts(settle_controller(choice, env, engines), request)


def choose_by_traits(traits: ScriptTraits, arguments: Sequence[str] = ()) -> Choice:
    """Return how a script wants to be started with these arguments; the first rule that fits decides."""
    by_engine = _choose_engine(traits) or _choose_spawning(traits, arguments)
    return _mark_elastic(by_engine or _choose_ranks(traits), traits)


def _choose_engine(traits: ScriptTraits) -> Choice | None:
    if traits.starter:
        why = f"the script starts its own ranks ({traits.starter}): one process a node"
        return Choice(LauncherName.SINGLE, why)
    if not traits.readable:
        why = "is not Python that can be read here" if traits.here else "is not on this machine"
        return Choice(LauncherName.TORCH, f"the script {why}: env:// ranks")
    if traits.mpi:
        both = "Horovod and mpi4py" if traits.horovod else "mpi4py"
        return Choice(LauncherName.MPI, f"the script imports {both}")
    if traits.horovod:
        return Choice(LauncherName.HOROVOD, "the script imports Horovod")
    return None


def _choose_spawning(traits: ScriptTraits, arguments: Sequence[str]) -> Choice | None:
    if _meets_by_variables(traits, arguments):
        why = (
            f"{traits.init_method} is env://, and {traits.spawn_flag}, with which the script "
            "starts its own ranks, is not given: env:// ranks"
        )
        return Choice(LauncherName.TORCH, why)
    if not traits.spawns:
        return None
    why = "the script starts its own ranks (mp.spawn)"
    if not traits.meets_by_arguments:
        return Choice(LauncherName.SINGLE, f"{why}: one process a node")
    why = f"{why} and declares {traits.init_method}: one process a node, told the node's number"
    return Choice(LauncherName.SINGLE, f"{why} by {traits.rank}", PassArgs.INIT_METHOD)


def _choose_ranks(traits: ScriptTraits) -> Choice:
    torch = LauncherName.TORCH
    if traits.local_rank:
        why = f"the script declares {traits.local_rank}: env:// ranks, and the argument added"
        return Choice(torch, why, PassArgs.TORCH_LAUNCH)
    if traits.meets_by_arguments:
        why = f"the script declares {traits.init_method}: ranks, and the argument added"
        return Choice(torch, why, PassArgs.INIT_METHOD)
    if traits.data_parallel:
        why = "the script wraps its model in DataParallel: one process a node"
        return Choice(LauncherName.SINGLE, why)
    if traits.distributed:
        return Choice(torch, "the script uses torch.distributed: env:// ranks")
    if traits.slurm:
        why = "the script reads SLURM_PROCID, but this is no Slurm job: env:// ranks"
        return Choice(torch, f"{why} (--slurm OPTIONS submits one)")
    imports = "imports torch and " if traits.torch else ""
    return Choice(torch, f"the script {imports}names no launcher: env:// ranks")


def _meets_by_variables(traits: ScriptTraits, arguments: Sequence[str]) -> bool:
    """Whether ranks are told to meet at env:// by a script that starts its own only with another flag."""
    if not (traits.spawn_flag and traits.init_method) or traits.spawn_flag in arguments:
        return False
    words = " ".join(arguments).replace(f"{traits.init_method}=", f"{traits.init_method} ")
    return f"{traits.init_method} env://" in words


def _mark_elastic(choice: Choice, traits: ScriptTraits) -> Choice:
    """Return ``choice`` for a script that may use hvd.elastic, which MPI has no part in."""
    if traits.elastic and choice.launcher is LauncherName.HOROVOD:
        return replace(choice, why=f"{choice.why}, elastic (hvd.elastic)", elastic=True)
    if traits.elastic and choice.launcher is LauncherName.MPI:
        return replace(choice, why=f"{choice.why}; {NOT_ELASTIC}")
    return choice


def _outlive_hosts(choice: Choice, request: Run) -> Choice:
    """Return ``choice``; for a job that is to outlive a host (``--nnodes MIN:MAX``), one that can."""
    can = choice.launcher is LauncherName.TORCHRUN or choice.elastic
    if can or not request.may_lose_hosts:
        return choice
    if request.launcher is not LauncherName.AUTO or choice.launcher is not LauncherName.TORCH:
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


def list_engines(choice: Choice, traits: ScriptTraits, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the engines (``horovod``, ``mpi``) that every host must have for this."""
    if choice.launcher is LauncherName.MPI:
        return ("mpi", "horovod") if traits.horovod else ("mpi",)
    if choice.launcher is LauncherName.HOROVOD:
        return ("horovod", "mpi") if _wants_mpi(env) else ("horovod",)
    return ()


def settle_controller(
    choice: Choice, env: Mapping[str, str], engines: Mapping[HostName, Engines]
) -> Choice:
    """Return ``choice``, or mpirun in place of Horovod's own start where that needs MPI.

    ``HOROVOD_ELASTIC`` says whether the ranks are elastic where the script does not show it.
    """
    if choice.launcher is not LauncherName.HOROVOD:
        return choice
    told = env.get(ELASTIC)
    elastic = choice.elastic if told is None else told.strip() not in ("", "0")
    if elastic != choice.elastic:
        choice = replace(choice, why=f"{choice.why}; {ELASTIC}={told}", elastic=elastic)
    if _wants_mpi(env):
        why = f"{choice.why}; HOROVOD_CONTROLLER=mpi"
    elif not has_gloo(engines):
        why = f"{choice.why}; Horovod there was built without Gloo"
    else:
        return choice
    why = f"{why}; {NOT_ELASTIC}" if elastic else why
    return Choice(LauncherName.MPI, why, choice.pass_args)


def _wants_mpi(env: Mapping[str, str]) -> bool:
    return env.get("HOROVOD_CONTROLLER", "").lower() == MPI
