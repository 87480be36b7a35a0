"""The runs of this node: their folders, and requests to their shims."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable

from distconsole_agent.contract import limits, records
from distconsole_agent.contract.protocol import ErrorCode, Values
from distconsole_agent.contract.refusal import Refusal, start_failed, storage
from distconsole_agent.contract.requests import ShimRequest
from distconsole_agent.contract.runspec import RunSpec
from distconsole_agent.journal.active import ActiveRun
from distconsole_agent.journal.journal import Journal
from distconsole_agent.journal.notices import FILE as NOTIFY_FILE
from distconsole_agent.node_folder import run_files
from distconsole_agent.node_folder.folders import (
    NodeFolders,
    Program,
    own_folder,
    remove_tree,
    ring_folder,
    ring_folders,
    storage_refusal,
    sync_paths,
    write_private,
)
from distconsole_agent.node_folder.hook_files import unpack_hook
from distconsole_agent.node_folder.manifest import has_outputs
from distconsole_agent.node_folder.proofs import Ages, is_unborn, may_live, remove_unborn
from distconsole_agent.node_folder.sync import CodeSync
from distconsole_agent.server.shim_calls import (
    ask_shim,
    await_shim,
    inherit_environment,
    shim_words,
    start_shim,
)
from distconsole_agent.system.descriptors import UsersProgram
from distconsole_agent.system.kernel_files import boottime
from distconsole_agent.system.own_log import complain
from distconsole_agent.telemetry.mapping import VISIBLE
from distconsole_agent.telemetry.mapping import visible_devices as chosen_devices

STILL_PREPARING_SECONDS = 60.0
FORGET_SECONDS = 3.0
"""How long a shim that has ended its run may take to leave."""


class NodeRuns:
    def __init__(
        self, folders: NodeFolders, program: Program, boottime: Callable[[], float] = boottime
    ) -> None:
        self._folders = folders
        self.program = program
        self._lock = threading.Lock()
        self._active: dict[str, ActiveRun] = {}
        self._preparing: set[str] = set()
        self._unkept: set[str] = set()
        """Finished runs that the disk may forget: no evidence of the end is written."""
        self._shims: dict[str, subprocess.Popen[bytes]] = {}
        self._boottime = boottime
        self._ages = Ages(os.path.join(folders.node_dir, "ended_since.json"), boottime)
        self._unborn: dict[str, float] = {}
        self.code = CodeSync(folders.node_dir, boottime)

    @property
    def active(self) -> list[ActiveRun]:
        with self._lock:
            return list(self._active.values())

    def pick_up(self) -> None:
        """Attend to every run that is not over, such as those of an agent that died."""
        for run in self._names():
            folder = self._folders.run(run)
            with self._lock:
                known = run in {*self._active, *self._preparing, *self._unkept}
            if known or run_files.read_end(folder) is not None:
                continue
            try:
                spec = run_files.read_own_spec(folder)
            except FileNotFoundError:
                self._drop_unborn(folder)
                continue
            except (OSError, ValueError):
                continue  # ``describe_all`` reports it
            try:
                self._attend(ActiveRun(folder, spec, self._forget_active))
            except Refusal as refusal:
                complain(f"the run {run} waits: {refusal.message}")

    def leave(self) -> None:
        """Let go of every run; they go on."""
        for active in self.active:
            active.leave()

    def prepare(
        self, run: str, raw_spec: object, environment: dict[str, str] | None = None
    ) -> Values:
        """Make the run's folder, start its shim and return the shim's answer.

        ``raw_spec`` is the node's part of the plan, as it came; its processes inherit
        ``environment``, None for this process's own. Raises Refusal: ``bad_request``,
        ``run_exists``, ``too_many``, ``storage`` or ``start_failed``.
        """
        run_files.check_run_id(run)
        spec = run_files.check_spec(run, raw_spec)
        if len(self.active) >= limits.MAX_ACTIVE_RUNS:
            raise Refusal(
                ErrorCode.TOO_MANY,
                f"{limits.MAX_ACTIVE_RUNS} runs go on on this node",
                "stop one of them: distconsole runs",
            )
        with self._lock:
            self._preparing.add(run)
        try:
            return self._prepare(self._folders.run(run), spec, inherit_environment(environment))
        finally:
            with self._lock:
                self._preparing.discard(run)

    def _prepare(self, folder: str, spec: RunSpec, environment: dict[str, str]) -> Values:
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            raise Refusal(
                ErrorCode.RUN_EXISTS, f"the run {spec.run} exists on this node", "take another id"
            ) from None
        except OSError as error:
            raise storage_refusal(folder, error) from None
        try:
            return self._prepare_in(folder, spec, environment)
        except BaseException as error:
            self._undo(folder)
            if isinstance(error, OSError):
                raise storage_refusal(folder, error) from None
            raise

    def start_detached(self, run: str, argv: list[str], environment: dict[str, str]) -> None:
        """Start a program of this run that outlives us; raises Refusal (``start_failed``)."""
        try:
            started = UsersProgram(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=environment,
            )
        except OSError as error:
            raise start_failed(f"{argv[0]}: {error.strerror}") from None
        with self._lock:
            self._shims[f"{run} {started.pid}"] = started

    def adopt(self, run: str, shim_pid: object) -> None:
        """Attend to a run that was prepared here and whose shim srun has started."""
        folder = self.folder(run)
        with self._lock:
            if run in self._active:
                return
        spec = run_files.read_own_spec(folder)
        visible = run_files.visible_devices(shim_pid) or spec.visible_devices
        spec = spec._replace(visible_devices=visible)
        self._attend(ActiveRun(folder, spec, self._forget_active))

    def ask_shim(self, run: str, request: ShimRequest) -> Values:
        """Send one request to a run's shim and return its answer.

        Raises Refusal: ``no_such_run``, ``timed_out``, or the shim's refusal.
        """
        folder = self.folder(run)
        try:
            return ask_shim(os.path.join(folder, "shim.sock"), request, limits.SHIM_ANSWER_SECONDS)
        except (TimeoutError, socket.timeout):
            raise Refusal(
                ErrorCode.TIMED_OUT,
                f"the supervisor of {run} did not answer within {limits.SHIM_ANSWER_SECONDS:.0f} s",
                "try again, or: distconsole stop --grace 0",
            ) from None
        except OSError:
            raise Refusal(
                ErrorCode.NO_SUCH_RUN, f"the run {run} is over on this node", "distconsole runs"
            ) from None

    def folder(self, run: object) -> str:
        """Return the folder of a run; raises Refusal: ``bad_request`` or ``no_such_run``."""
        folder = self._folders.run(run_files.check_run_id(run))
        if not os.path.isdir(folder):
            raise Refusal(
                ErrorCode.NO_SUCH_RUN, f"there is no run {run} on this node", "distconsole runs"
            )
        return folder

    def journal(self, run: object) -> tuple[Journal, bool]:
        """Return a run's journal, and True if the caller has to close it.

        Raises Refusal: ``bad_request``, ``no_such_run``, or ``storage`` if no agent can continue it.
        """
        folder = self.folder(run)
        if run_files.read_end(folder) is None:
            # Perhaps prepared by an agent of another version.
            self.pick_up()
        with self._lock:
            active = self._active.get(str(run))
        if active is not None:
            return active.journal, False
        journal = Journal(os.path.join(folder, "journal"))
        try:
            end = run_files.find_end(folder)
        except run_files.UNREADABLE as error:
            why = run_files.trouble_with(folder, error)
            raise storage(why, f"what is left of the run on that node: {folder}") from None
        journal.last_seq, journal.ended = end.seq, True
        return journal, True

    def describe_all(self) -> list[Values]:
        """Return ``RUN_FIELDS`` of every run, oldest first."""
        found = []
        self.pick_up()
        for run in self._names():
            with self._lock:
                active, preparing = self._active.get(run), run in self._preparing
            with contextlib.suppress(FileNotFoundError):
                if not preparing:
                    found.append(run_files.describe(self._folders.run(run), active))
        return sorted(found, key=lambda each: (each["created"], each["run"]))

    def forget(self, run: object) -> bool:
        """Remove a run, or return False while it goes on; raises Refusal: ``bad_request``, ``no_such_run``.

        One that was prepared and never had a shim goes at once: an srun that comes too late finds nothing to start.
        """
        folder = self.folder(run)
        self.pick_up()
        with self._lock:
            active = self._active.get(str(run))
        if active is not None and not os.path.lexists(os.path.join(folder, "shim.pid")):
            self._forget_active(active)
            active.leave()
            active = None
        lives = may_live(folder) if active is None else not active.journal.ended
        if lives and run_files.read_end(folder) is None:
            return False
        deadline = time.monotonic() + FORGET_SECONDS
        while time.monotonic() < deadline:
            self.reap()
            with self._lock:
                lingers = run in self._active
            if not (lingers or os.path.exists(os.path.join(folder, "shim.sock"))):
                break
            time.sleep(0.02)
        self._undo(folder)
        return True

    def reap(self) -> None:
        with self._lock:
            self._shims = {run: shim for run, shim in self._shims.items() if shim.poll() is None}

    def housekeep(self) -> None:
        """Remove runs that ended long ago, rings of runs that are over, and old code.

        A run that wrote files into its code's folder stays: they may be its checkpoints.
        """
        # A finished run was finished already when the removals are listed.
        over = {
            run for run in self._names() if run_files.read_end(self._folders.run(run)) is not None
        }
        for run, path in ring_folders(self._folders.node_dir):
            if run in over or not os.path.lexists(self._folders.run(run)):
                self._discard(path)
        try:
            self.code.housekeep()
            ages = self._ages.note(over)
        except OSError as error:
            complain(f"old runs and code stay: {error}")
            return
        for run, seconds in ages.items():
            folder = self._folders.run(run)
            if seconds > limits.KEEP_RUN_SECONDS and not has_outputs(folder):
                self._undo(folder)

    def _names(self) -> list[str]:
        return [
            name for name in sorted(os.listdir(self._folders.runs)) if run_files.is_run_id(name)
        ]

    def _prepare_in(self, folder: str, spec: RunSpec, environment: dict[str, str]) -> Values:
        for name in ("logs", "errors", "journal"):
            own_folder(os.path.join(folder, name))
        if spec.code:
            self.code.place(spec.run, folder, spec.code)
        if spec.notify is not None:
            write_private(os.path.join(folder, NOTIFY_FILE), spec.notify, sync=False)
        spec = self._make_rings(folder, spec, environment)._replace(
            hook=unpack_hook(self._folders, self.program) if spec.watch else None,
            agent_argv=(*self.program.argv, "agent", "--node-dir", self._folders.node_dir),
            visible_devices=chosen_devices(environment),
            visible_variables={n: environment[n] for n in VISIBLE if n in environment},
            notify=None,
        )
        path = os.path.join(folder, "spec.json")
        write_private(path, records.write(spec), sync=False)
        if spec.below_slurm:  # srun starts it, and not this agent
            sync_paths(path, folder)
            argv = shim_words(self.program, folder)
            return {"coordinator": None, "master_port": None, "shim_pid": 0, "shim_argv": argv}
        shim = start_shim(self.program, folder, environment)
        try:
            sync_paths(path, folder)  # a shim takes longer to start than most disks to keep a file
            prepared = await_shim(folder, shim)
            self._attend(ActiveRun(folder, spec, self._forget_active))
        except BaseException:
            shim.kill()
            shim.wait()
            raise
        with self._lock:
            self._shims[spec.run] = shim
        return prepared

    def _make_rings(self, folder: str, spec: RunSpec, environment: dict[str, str]) -> RunSpec:
        """Make the rings' folder; return the spec with it, and with the words that enter a container, which may not have the node's memory."""
        node_dir, shares_memory, enter = self._folders.node_dir, True, spec.enter
        if spec.container:
            from distconsole_agent.probes.software.container import way_of_run  # most have none

            way = way_of_run(spec, node_dir, environment)
            enter, shares_memory = tuple(way.words), way.shares_memory
        rings = ring_folder(spec.run, node_dir) if shares_memory else None
        if rings is None:
            rings = os.path.join(folder, "rings")
            own_folder(rings)
        return spec._replace(rings=rings, enter=enter)

    def _attend(self, active: ActiveRun) -> None:
        with self._lock:
            self._active[active.run] = active
        try:
            active.begin()
        except RuntimeError as error:
            self._forget_active(active)
            raise Refusal(
                ErrorCode.TOO_MANY, f"this node starts no thread: {error}", "see: ulimit -u"
            ) from None

    def _forget_active(self, active: ActiveRun) -> None:
        with self._lock:
            self._active.pop(active.run, None)
            if not active.kept:
                self._unkept.add(active.run)

    def _undo(self, folder: str) -> None:
        """Remove a run's folder, and its rings in shared memory: a ``prepare`` that fails has written no spec yet."""
        with contextlib.suppress(OSError, ValueError):
            if (rings := run_files.read_own_spec(folder).rings) is not None:
                self._discard(rings)
        for run, path in ring_folders(self._folders.node_dir):
            if run == os.path.basename(folder):
                self._discard(path)
        self._discard(folder)

    def _drop_unborn(self, folder: str) -> None:
        """Remove the rest of a ``prepare`` that wrote no spec, if it left nothing else."""
        since, now = self._unborn.pop(folder, None), self._boottime()
        if not is_unborn(folder):
            return
        if since is None or now - since <= STILL_PREPARING_SECONDS:
            self._unborn[folder] = now if since is None else since
        else:
            remove_unborn(folder)

    @staticmethod
    def _discard(path: str) -> None:
        try:
            remove_tree(path)
        except OSError as error:
            complain(f"{path} cannot be removed: {error}")
