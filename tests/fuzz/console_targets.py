"""What the console reads of others: answers, files of a user or a project, lines, and what programs print."""

import ast
import gzip
import io
import os
import re
import socket
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from distconsole.checks.gather.transports import read_mpi_words, split_mpi_words
from distconsole.config.hostfile import host_text, read_hostfile, read_list
from distconsole.config.load import read_config
from distconsole.config.ranges import RangeError
from distconsole.errors import ConfigError, ConsoleError, LinkLostError, NodeError, PlanError
from distconsole.expression import ExpressionError, parse_condition
from distconsole.formats.merged_trace import RankTrace, TraceError, merge
from distconsole.grammar.completion import complete_line
from distconsole.grammar.drafts import read_draft
from distconsole.grammar.pasting.read import read_command
from distconsole.grammar.values import Vocabulary
from distconsole.grammar.verbs import parse_line
from distconsole.grammar.words import words_of
from distconsole.launch.script import traits_of
from distconsole.launch.slurm.srun import read_job
from distconsole.launch.sync.ignore import read_rules
from distconsole.rpc import frames, wire
from distconsole.rpc.frames import LogEntry
from distconsole.rpc.roll_calls import read_calls
from distconsole.runs.conditions.rank_fields import RANK_FIELDS
from distconsole.runs.logs.printed import EtaEstimator, PrintedLosses
from distconsole.runs.logs.slices import LineAssembler
from distconsole.runs.points import PointReducer
from distconsole.runs.store.run_file import RunFile
from distconsole.runs.summary import brief, decode_entry, stored_events, summary_of
from distconsole.ssh.known_hosts import KnownHosts
from distconsole.ssh.multiplexing import ControlSocket, RefusedError
from distconsole.ssh.openssh_login import failure, offered_and_tried, reached_address
from distconsole.ssh.plain import log_text, plain_lines, plain_text, without_colours
from distconsole.ssh.ssh_config import SshConfig
from fuzz.judging import Target, file_of, sandbox

SHELL = set(";&|$`()<>{}'\"\\ \n\t*?!")
"""What no name may have that goes into a command."""
IN_A_HOST = set("*?!")
"""What OpenSSH lets a name have (ssh.c, valid_hostname)."""
USER_IN_A_LIST = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]*")
IN_A_USER = set("'`\";&<>|(){}\n")
"""As OpenSSH has it: ``DOMAIN\\user`` is one."""
OPS = (*wire.RESULTS, "roll_call", "probe", "stop")


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def answer(data: bytes) -> Iterator[str]:
    _, item = wire.find_item(data)
    if item:
        with suppress(NodeError):
            for op in ("follow", *wire.ITEMS):
                wire.read_item(op, item, plain=wire.is_plain(data))
    said = wire.decode_answer(data)
    yield from texts_in(check_answer(said))


def check_answer(said: frames.Answer) -> Any:
    if isinstance(said.error, dict):
        error = wire.refusal(said.error)
        return [str(error), error.hint]
    made: list[Any] = []
    for op in OPS if isinstance(said.result, dict) else ():
        with suppress(NodeError):
            made.append(wire.check_result(op, said.result))  # type: ignore[arg-type]
            if op == "roll_call":
                made.append([msgspec.to_builtins(call) for call in read_calls(made[-1])])
    for op in (*wire.ITEMS, "follow") if isinstance(said.item, dict) else ():
        with suppress(NodeError):
            item = wire.check_item(op, said.item)  # type: ignore[arg-type]
            if op != "follow":  # what was printed is cleaned later
                made.append(msgspec.to_builtins(item))
    return made


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from (key, *texts_in(inner))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from texts_in(inner)


def start_refusal(data: bytes) -> list[str]:
    error = wire.start_refusal(data)
    return [] if error is None else [str(error), error.hint]


def known_hosts(data: bytes) -> None:
    known = KnownHosts([str(file_of(data))])
    options = SshConfig(file_of(b""), home=sandbox(), environ={}).lookup("node1")
    for host, port, alias in (("node1", 22, None), ("10.0.0.1", 2222, None), ("h", 22, "alias")):
        found = known.lookup(replace(options, hostname=host, port=port, host_key_name=alias))
        found.algorithms(["ssh-ed25519", "rsa-sha2-512"])
        found.verify("ssh-ed25519", b"key")


def ssh_config(data: bytes) -> list[str]:
    alias, _, rest = data.partition(b"\n")
    alias = alias[:255]
    if re.search(rb"(?i)exec|include", rest):  # which may start and read what they like
        return []
    path = file_of(rest)
    config = SshConfig(path, home=sandbox(), environ={})
    found = config.lookup(text_of(alias) or "node1")
    assert not (SHELL - IN_A_HOST) & set(found.alias), "a name that a shell would act on"
    assert not IN_A_USER & set(found.user), "a user that a shell would act on"
    return [each for each in config.names if "\n" not in each]


def hostfile(data: bytes) -> None:
    for host in read_hostfile(file_of(data)):
        assert not SHELL & set(host.name), host
        assert not IN_A_USER & set(host.user or ""), host
        if host.user is None or USER_IN_A_LIST.fullmatch(host.user):
            assert read_list(host_text(host)) == [host]


def host_list(data: bytes) -> None:
    for host in read_list(text_of(data)):
        assert read_list(host_text(host)) == [host]


def toml(data: bytes) -> None:
    read_config(file_of(data, "distconsole.toml"))


def script(data: bytes) -> list[str]:
    if re.search(rb"\b(\w+\.){2000}", data):
        return []  # CPython's parser keeps a text of each beginning of such a name
    text = text_of(data)
    traits = traits_of(text)
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        ast.parse(text)
        assert traits.here
    return []


def pasted(data: bytes) -> list[str]:
    text = text_of(data)
    with suppress(ValueError):
        read_command(words_of(text) or [""])
    parse_line(f"run {text}")
    return []


def prompt(data: bytes) -> Iterator[str]:
    line = text_of(data)
    for each in complete_line(line, Vocabulary(), lambda _folder: [("a b", False), ("c", True)]):
        yield from ((each.help, each.shown) if line.isprintable() else ())
    read_draft(line)
    parse_line(line)


def expression(data: bytes) -> None:
    answers = parse_condition(text_of(data), RANK_FIELDS).answers([])
    assert answers == []


def printed(data: bytes) -> Iterator[str]:
    text, eta = data.decode("utf-8", "surrogateescape"), EtaEstimator()
    losses, cuts = PrintedLosses("r", PointReducer("r")), range(0, len(text), 777)
    for number, at in enumerate(cuts):
        entry = LogEntry(
            seq=number + 1,
            t=float(number),
            rank=0,
            stream="out",
            offset=at,
            text=text[at : at + 777],
        )
        for event in losses.feed("a", entry, 20.0 * number):
            line = getattr(event, "line", "")
            eta.read(line, float(number))
            yield without_colours(line)
    for event in losses.flush(1e6):
        yield without_colours(getattr(event, "line", ""))
    eta.seconds_left(1e6, 3, 1.0, {})


def plain(data: bytes) -> Iterator[str]:
    text = (
        data.decode("utf-8", "surrogatepass" if b"\xed" in data else "replace")
        if _is_utf8(data)
        else data.decode("latin-1")
    )
    yield plain_text(text)
    yield plain_lines(text)
    yield without_colours(log_text(text))
    assert "\n" not in plain_text(text)
    lines = LineAssembler()
    for at in range(0, len(text), 100):
        yield from (without_colours(line) for line, _ in lines.feed(text[at : at + 100]))
    yield from (without_colours(line) for line, _ in lines.flush())


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


def ignore_file(data: bytes) -> None:
    rules = read_rules(data.decode("utf-8", "surrogateescape"), "sub")
    for path in ("a.py", "sub/deep/a.pyc", "sub/" + "a" * 60):
        rules.leave_out(path, folder=False)


def merged_trace(data: bytes) -> None:
    ranks = [
        RankTrace(
            rank,
            f"n{rank}",
            file_of(gzip.compress(part, 1), f"{rank}.gz"),
            1 << 22,
            rank * 1000,
            50,
        )
        for rank, part in enumerate((data, data.partition(b"\n--\n")[2] or data))
    ]
    with suppress(TraceError):
        merge(ranks, io.BytesIO())
    (
        (broken := file_of(data, "2.gz")),
        merge([RankTrace(2, "n", broken, 1 << 22, 0, 0)], io.BytesIO()),
    )


def mux(data: bytes) -> None:
    """A master of ssh that says ``data``, whatever it is asked."""
    with tempfile.TemporaryDirectory(dir=sandbox()) as folder, ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(f"{folder}/m")
        listener.listen(1)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        stack.callback(thread.join)
        with closing(ControlSocket(f"{folder}/m")) as control:
            null = stack.enter_context(Path(os.devnull).open("r+b")).fileno()
            control.open_session("true", (null, null, null), 1.0)
            while control.exit_code(0.2) is None:
                pass


def stored_entry(data: bytes) -> None:
    decode_entry(data)


def stored_run(data: bytes) -> None:
    with RunFile(file_of(data, "run-1.db")) as run_file:
        run_file.record()  # which lists leave out where it cannot be read
        brief(run_file)
        for _ in stored_events(run_file):
            pass
        summary_of(run_file)
        run_file.places()


def ssh_words(data: bytes) -> list[str]:
    text = text_of(data)
    error = failure(
        text, "node1", "a@node1", by_hand="ssh node1", jump="", declined=False, asks=False
    )
    reached_address(text)
    offered_and_tried(text)
    return [str(error), error.hint]


def mpi_words(data: bytes) -> None:
    said, _ = split_mpi_words(text_of(data).splitlines())
    read_mpi_words(said, 0)


def slurm_job(data: bytes) -> None:
    read_job(text_of(data))


def of_bytes(run: Callable[[bytes], Any], *allowed: type[Exception], **more: Any) -> Target:
    return Target(run.__name__.replace("_", "-"), run, allowed, **more)


TARGETS = (
    of_bytes(answer, NodeError),
    of_bytes(start_refusal),
    of_bytes(known_hosts, ConsoleError),
    of_bytes(ssh_config, ConfigError),
    of_bytes(hostfile, ConfigError),
    of_bytes(host_list, RangeError),
    of_bytes(toml, ConfigError, slow=4),
    of_bytes(script, slow=2),
    of_bytes(pasted, ConsoleError, slow=4, max_bytes=4096),
    of_bytes(prompt, ConsoleError, slow=8, max_bytes=4096),
    of_bytes(expression, ExpressionError),
    of_bytes(printed),
    of_bytes(plain),
    of_bytes(ignore_file, max_bytes=4096),
    of_bytes(merged_trace, TraceError, slow=2),
    of_bytes(mux, LinkLostError, RefusedError, slow=4),
    of_bytes(stored_entry, ValueError),
    of_bytes(stored_run, sqlite3.Error, ValueError, slow=4, max_bytes=256 * 1024),
    of_bytes(ssh_words),
    of_bytes(mpi_words),
    of_bytes(slurm_job, PlanError),
)
