"""The script of a run: refusals before anything is started, and the traits in its source that decide how to start it."""

from __future__ import annotations

import ast
import re
import shlex
from contextlib import suppress
from dataclasses import replace
from itertools import count, dropwhile
from pathlib import Path, PurePosixPath

from distconsole.config.paths import expand_home
from distconsole.config.spelling import nearest_script
from distconsole.errors import PlanError, UsageError
from distconsole.grammar.mistakes import hosts_meant
from distconsole.grammar.pasting.read import PYTHON_NAME, RAY_DRIVER
from distconsole.grammar.secrets import mask_text
from distconsole.launch.shell import DIRECTIVE, SHELL_ENDINGS, SHELLS, read_shell
from distconsole.model.cluster import Cluster
from distconsole.model.job import ScriptTraits, ShellScript, ShellStart
from distconsole.model.requests import Run

MAX_SOURCE_BYTES = 4 * 1024 * 1024
SPAWNERS = ("mp.spawn", "multiprocessing.spawn", "torch.multiprocessing.spawn", "xmp.spawn")
TRAINERS = ("lightning", "pytorch_lightning", "transformers")
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher")
RUNS_PROGRAM = re.compile(r"subprocess\.(run|call|check_\w+|Popen)|os\.(system|execvp?)")
OPENERS = {"init_process_group", "init_device_mesh", "Accelerator"}
DISTRIBUTED_MODELS = {"DistributedDataParallel", "FullyShardedDataParallel", "fully_shard"}
NOT_READ = ("sys.stdin.isatty", "sys.stdin.fileno", "sys.stdin.close")
"""Uses of standard input that do not read it."""
SLURM_NAMES = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NODEID")


CONFIGURATIONS = (".yaml", ".yml", ".toml", ".json", ".cfg", ".ini")
DASHES = tuple("\u2010\u2011\u2012\u2013\u2014\u2212")
OUR_FLAGS = frozenset(
    (
        *("--hosts", "--hostfile", "--cluster", "--ssh-config", "--nproc", "--launcher"),
        *("--nnodes", "--dry-run", "--detach", "--slurm", "--slurm-login", "--emit"),
        *("--sync", "--no-sync", "--env-file", "--pass-args", "--max-restarts", "--verify-sync"),
    )
)
"""Options of ``run`` that few scripts have too; ``--name``, ``--json`` and the like are left to scripts."""


def path_here(request: Run) -> Path:
    """Return the script's path on this machine; the file may be missing."""
    return (expand_home(request.workdir or ".") / request.script).absolute()


def refuse_other_file(request: Run) -> None:
    """Refuse a script that neither Python nor a shell can run: by its name, or as it lies here. Raises PlanError, naming the path."""
    path = path_here(request)
    if request.module:
        return
    if not request.script.strip():
        cure = "a variable that is not set? a blank behind a line's last backslash?"
        raise UsageError("SCRIPT is empty", cure)
    typed = expand_home(request.workdir or ".") / request.script
    if path.suffix == ".ipynb":
        made = _unused(path, ".py")
        cure = f"make a script of it: jupyter nbconvert --to script {shlex.quote(str(typed))}"
        cure += f" --output {shlex.quote(made)}" if made != path.stem else ""
        raise PlanError(f"{path} is a notebook and no Python script", cure)
    if path.suffix in CONFIGURATIONS:
        name = shlex.quote(request.script)
        cure = f"name the script first, then this file: distconsole run train.py … {name}"
        raise PlanError(f"{path} is a configuration and no script", cure)
    program = False
    with suppress(OSError), path.open("rb") as file:
        program = file.read(4) == b"\x7fELF"
    if program:
        name = shlex.quote(request.script if "/" in request.script else f"./{request.script}")
        line = shlex.quote(f'exec {name} "$@"')
        made = shlex.quote(f"{typed.with_name(_unused(path, '.sh'))}.sh")
        cure = f"a script that starts it can be launched: echo {line} > {made}"
        raise PlanError(f"{path} is a program and no Python script", cure)


def refuse_missing_script(request: Run, cluster: Cluster) -> None:
    """Raise PlanError if this machine is the only host and the script is not there."""
    path = path_here(request)
    runnable = path.is_file() or (path / "__main__.py").is_file()
    elsewhere = not all(host.local and not host.container for host in cluster.hosts)
    if request.module or runnable or elsewhere:
        return
    folder = expand_home(request.workdir or ".")
    if not folder.is_dir():
        raise PlanError(f"the folder {folder} of --workdir does not exist", "give one that does")
    what = "is a folder without __main__.py" if path.is_dir() else "does not exist"
    raise PlanError(f"the script {path} {what}", _meant_script(request, path))


def _meant_script(request: Run, path: Path) -> str:
    text = request.script
    end = "give its path, or --module with a module's name"
    if path.is_dir():
        scripts = sorted(each.name for each in path.glob("*.py"))
        return f"did you mean {Path(text) / scripts[0]}?" if len(scripts) == 1 else end
    if "$" in text:
        return f"the shell has not replaced the variable in {text}: leave the single quotes out"
    if text.startswith("~/") and (meant := Path.home() / text[2:]).is_file():
        return f"did you mean {meant}? a shell replaces ~ only outside of quotes"
    if Path(f"{path}.py").is_file():
        return f"did you mean {text}.py?"
    if (path.parent / f"{path.name.replace('.', '/')}.py").is_file():
        return f"did you mean --module {text}?"
    if not request.divided and (hosts := hosts_meant((text, *request.arguments))):
        return hosts
    near = nearest_script(path.name, (each.name for each in path.parent.glob("*.py")))
    return f"did you mean {Path(text).parent / near}? {end}" if near else end


def _unused(path: Path, suffix: str) -> str:
    stems = (f"{path.stem}{number or ''}" for number in count())
    return next(stem for stem in stems if not path.with_name(stem + suffix).exists())


def refuse_our_flags(request: Run, verb: str = "run") -> None:
    """Refuse an option of ours with another dash, which is taken for the script, or behind the script of ``verb``.

    A script that names the option anywhere gets it, and so does every script behind ``--``, and one that is not on
    this machine, unless the option is --hosts. Raises UsageError with the line that was probably meant.
    """
    if request.script.startswith(DASHES) and not path_here(request).exists():
        cure = "type its - or -- by hand: a page or a text program has put another character there"
        raise UsageError(f"{request.script} does not begin with the hyphen of an option", cure)
    words = request.arguments
    words = words[: words.index("--")] if "--" in words else words
    given = [word.partition("=")[0] for word in words]
    ours = next((flag for flag in given if flag in OUR_FLAGS), None)
    if ours is None or request.divided or request.module:
        return
    try:
        path = path_here(request)
        source = path.read_text("utf-8", "replace") if path.suffix == ".py" else ""
    except OSError:
        is_theirs = ours != "--hosts"
    else:
        spelled = re.escape(ours.removeprefix("--")).replace(r"\-", "[-_]")
        is_large = len(source) > MAX_SOURCE_BYTES
        is_theirs = not source or is_large or bool(re.search(rf"\b{spelled}\b", source))
    if is_theirs:
        return
    line = mask_text(shlex.join([request.script, *request.arguments]))
    raise UsageError(
        f"{ours} stands behind the script, so {request.script} would get it and not distconsole",
        f"put it before the script; or, if the script wants it: distconsole {verb} … -- {line}",
    )


def find_traits(request: Run) -> ScriptTraits:
    """Return the traits of the script of ``request``, as far as it lies on this machine too."""
    if not request.module:
        return read_traits(expand_home(request.workdir or ".") / request.script, request)
    found = (read_traits(each) for each in module_files(request) if each.is_file())
    traits = next(found, ScriptTraits())
    return replace(traits, ray=traits.ray or bool(RAY_DRIVER.fullmatch(request.script)))


def module_files(request: Run) -> list[Path]:
    """Return the candidate files of a module in the folder that the ranks start in."""
    path = expand_home(request.workdir or ".").joinpath(*request.script.split("."))
    return [path.with_suffix(".py"), path / "__main__.py"]


def read_traits(path: Path, request: Run | None = None) -> ScriptTraits:
    """Return the traits of the script at ``path``; none if it cannot be read."""
    try:
        if path.stat().st_size > MAX_SOURCE_BYTES:
            return ScriptTraits()
        raw = path.read_bytes()
        source = raw.decode("utf-8", "replace").replace("\r\n", "\n")
        traits = traits_of(source, path, request)
        if traits.shell is None or b"\r\n" not in raw:
            return traits
        return replace(traits, shell=replace(traits.shell, ends_as_windows=True))
    except OSError:
        return ScriptTraits()


def traits_of(source: str, path: Path | None = None, request: Run | None = None) -> ScriptTraits:
    """Return the traits of a script in Python or for a shell; of any other language only its interpreter.

    Args:
        path: Its place; scripts that a shell script starts are looked up beside it.
        request: Its arguments, variables, and working folder.
    """
    suffix = path.suffix if path is not None else ""
    interpreter = find_interpreter(source, suffix)
    seen, tree = _Seen(), None
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        parsed = ast.parse(source)
        seen.visit(parsed)
        tree = parsed
    if interpreter and (tree is None or suffix != ".py"):
        if PurePosixPath(interpreter[0]).name in SHELLS:
            return _shell_traits(source, interpreter, path, request)
        return ScriptTraits(here=True, interpreter=interpreter)
    if tree is None:
        return ScriptTraits(here=True)
    modules = seen.modules
    is_rank = seen.distributed or seen.spawners or "backward" in seen.called
    is_rank = is_rank or _imports(modules, "horovod", "mpi4py", *TRAINERS)
    starts = () if is_rank else seen.find_starts()
    return ScriptTraits(
        here=True,
        shell=ShellScript(starts=starts) if starts else None,
        readable=True,
        horovod=_imports(modules, "horovod"),
        elastic=_imports(modules, "horovod") and seen.elastic,
        mpi=_imports(modules, "mpi4py"),
        torch=_imports(modules, "torch", *TRAINERS),
        distributed=seen.distributed or _imports(modules, "torch.distributed", "deepspeed"),
        data_parallel="DataParallel" in seen.called
        and not seen.called & DISTRIBUTED_MODELS
        and not (seen.distributed or _imports(modules, "deepspeed")),
        spawns=bool(seen.spawners),
        ray=_imports(modules, "ray")
        and bool({"ray.init", "TorchTrainer"} & {*seen.calls, *seen.called})
        and not seen.distributed,
        spawn_flag=_option(seen.options, *seen.spawn_guards),
        slurm=any(name in seen.strings for name in SLURM_NAMES),
        local_rank=_option(seen.options, "local_rank"),
        init_method=_option(seen.options, "init_method", "dist_url"),
        rank=_option(seen.options, "rank"),
        world_size=_option(seen.options, "world_size"),
        stdin=seen.stdin,
        modules=frozenset(
            module.partition(".")[0]
            for module in modules
            if not any(name.startswith("sys.path") for name in seen.attributes)
        ),
        reports=_imports(modules, "distconsole_training"),
        backend=seen.backend,
    )


def find_interpreter(source: str, suffix: str) -> tuple[str, ...]:
    """Return the interpreter's words by a script's first line, else by its ending; none for Python."""
    first = source.partition("\n")[0].rstrip()
    words = first[2:].split() if first.startswith("#!") else []
    if words and PurePosixPath(words[0]).name == "env":
        words = list(dropwhile(lambda word: "=" in word or word.startswith("-"), words[1:]))
    if not words:
        known = suffix in SHELL_ENDINGS or (suffix != ".py" and DIRECTIVE.search(source))
        return ("bash",) if known else ()
    name = PurePosixPath(words[0]).name
    if PYTHON_NAME.fullmatch(name):
        return ()
    # bash also runs scripts for sh, and is looked up in the host's PATH.
    return ("bash", *words[1:]) if name in ("bash", "sh") else tuple(words)


def _shell_traits(
    source: str, interpreter: tuple[str, ...], path: Path | None, request: Run | None
) -> ScriptTraits:
    folders = [expand_home(request.workdir or ".")] if request is not None else []
    folders += [path.parent] if path is not None else []
    values: dict[str, str | list[str]] = dict(request.env) if request is not None else {}
    if request is not None:
        values |= {str(at): word for at, word in enumerate(request.arguments, 1)}
        values["@"] = list(request.arguments)
    shell = read_shell(source, folders, values)
    below = (read_traits(folder / each) for each in shell.pythons for folder in folders)
    found = [each for each in below if each.readable]
    starts = [start for each in found if each.shell for start in each.shell.starts]
    return ScriptTraits(
        here=True,
        interpreter=interpreter,
        shell=replace(shell, starts=(*shell.starts, *starts)),
        spawns=not shell.starts and any(each.spawns and not each.spawn_flag for each in found),
        modules=frozenset().union(*(each.modules for each in found)),
    )


class _Seen(ast.NodeVisitor):
    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.calls: dict[str, set[str]] = {}
        self.guards: tuple[str, ...] = ()
        self.attributes: set[str] = set()
        self.strings: set[str] = set()
        self.options: list[str] = []
        self.backend = ""
        self.aliases: dict[str, str] = {}
        self.values: dict[str, ast.expr] = {}
        self.commands: list[ast.expr] = []

    @property
    def called(self) -> set[str]:
        return {name.rpartition(".")[2] for name in self.calls}

    @property
    def distributed(self) -> bool:
        return bool(self.called & OPENERS)

    @property
    def spawners(self) -> list[str]:
        return [name for name in self.calls if self._spawns(name)]

    @property
    def spawn_guards(self) -> set[str]:
        """The arguments that every way to spawn requires."""
        guards = [self.calls[name] for name in self.spawners]
        return set.intersection(*guards) if guards else set()

    def find_starts(self) -> tuple[ShellStart, ...]:
        """Return the launchers that are imported to be called, or started as programs."""
        called = [name for name in LAUNCHERS if _imports(self.modules, name)]
        found = [ShellStart(name, 1, (name, "--nnodes=")) for name in called]
        for command in self.commands:
            texts = [ast.unparse(command).replace("sys.executable", "'python'")]
            names = [name for name in re.findall(r"\w+", texts[0]) if name in self.values]
            texts += [ast.unparse(self.values[name]) for name in names]
            words = " ".join(word for _, word in re.findall(r"f?(['\"])(.*?)\1", " ".join(texts)))
            found += [
                replace(each, line=command.lineno)
                for each in read_shell(words).starts
                if each.words[2:] or ".py" in each.words[-1]
            ]
        return tuple(found)

    def _full(self, name: str) -> str:
        head, dot, rest = name.partition(".")
        return f"{self.aliases.get(head, head)}{dot}{rest}"

    def _spawns(self, name: str) -> bool:
        full = self._full(name)
        return name in SPAWNERS or full in SPAWNERS or full.endswith("multiprocessing.spawn")

    @property
    def stdin(self) -> bool:
        read = {"input", "fileinput.input"} & self.calls.keys()
        return bool(read) or "sys.stdin" in self.attributes | self.modules

    @property
    def elastic(self) -> bool:
        names = (*self.attributes, *self.modules)
        return any("elastic" in name.split(".")[1:] for name in names)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = _full_name(node)
        self.attributes.add(name)
        if name not in NOT_READ:
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.modules.add(alias.name)
            if alias.asname:
                self.aliases[alias.asname] = alias.name

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level or not node.module:
            return
        self.modules.add(node.module)
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            self.modules.add(full)
            self.aliases[alias.asname or alias.name] = full

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.targets[0], ast.Name):
            self.values[node.targets[0].id] = node.value
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        # The attributes that the test requires to be true, as in ``args.spawn and ranks > 1``.
        both = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
        parts = node.test.values if isinstance(node.test, ast.BoolOp) and both else [node.test]
        outside = self.guards
        self.guards += tuple(part.attr for part in parts if isinstance(part, ast.Attribute))
        for each in node.body:
            self.visit(each)
        self.guards = outside
        for each in node.orelse:
            self.visit(each)

    def visit_Call(self, node: ast.Call) -> None:
        name = _full_name(node.func)
        self.calls[name] = self.calls.get(name, set(self.guards)) & set(self.guards)
        called = name.rpartition(".")[2]
        if RUNS_PROGRAM.fullmatch(self._full(name)):
            self.commands += node.args[-1:]
        if called == "init_process_group":
            given = [word.value for word in node.keywords if word.arg == "backend"]
            for text in _texts([*node.args[:1], *given]):
                self.backend = text.lower()
        if called in ("add_argument", "option", "add_option"):
            self.options += [text for text in _texts(node.args) if text.startswith("--")]
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and len(node.value) < 64:
            self.strings.add(node.value)


def _texts(nodes: list[ast.expr]) -> list[str]:
    constants = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return [value for value in constants if isinstance(value, str)]


def _full_name(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def _imports(modules: set[str], *names: str) -> bool:
    return any(
        module == name or module.startswith(f"{name}.") for module in modules for name in names
    )


def _option(options: list[str], *names: str) -> str:
    """Return the declared spelling of one of ``names``, else empty."""
    for name in names:
        for option in options:
            if option[2:].replace("-", "_") == name:
                return option
    return ""
