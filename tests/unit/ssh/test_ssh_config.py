"""Our reading of ssh_config against ``ssh -G``; lines of known_hosts stay if one is added."""

import shutil
from pathlib import Path

import pytest

from distconsole.errors import ConfigError
from distconsole.ssh.jumps import hop_host
from distconsole.ssh.known_hosts import add_line
from distconsole.ssh.ssh_config import DEFAULT_CONNECT_SECONDS, SshConfig, SshOptions
from suite.programs import run_to_end

CASES = {
    "first value wins": "Host a\n HostName one\n Port 1\nHost *\n HostName two\n Port 2\n User u\n",
    "patterns": "Host a? !ab *.x\n User no\nHost a*\n User yes\n",
    "negation": "Host * !a\n User no\nHost *\n User yes\n",
    "equals and quotes": 'Host="a"\n HostName = "h.example"\n Port=22022\n',
    "case and comments": "# c\nHOST a # comment\n   hostname H.Example\n\tPORT 7 # seven\n",
    "identities add up": "Host a\n IdentityFile ~/k1\nHost *\n IdentityFile /k2\n IdentityFile ~/k1\n",
    "identity tokens": "Host a\n HostName h\n User u\n IdentityFile %d/%h-%r-%n-%p-%%\n",
    "jump": "Host a\n ProxyJump me@hop:99,hop2\n",
    "jump to none": "Host a\n ProxyJump none\n ProxyCommand nc\nHost *\n ProxyJump hop\n",
    "command": "Host a\n HostName h\n ProxyCommand nc -x 'a b' %h %p %r\n",
    "command to none": "Host a\n ProxyCommand none\nHost *\n ProxyCommand nc %h %p\n",
    "jump before command": "Host a\n ProxyJump hop\n ProxyCommand nc %h %p\n",
    "command before jump": "Host a\n ProxyCommand nc %h %p\n ProxyJump hop\n",
    "host token": "Host a\n HostName %h.cluster.local\n",
    "match host": "Host a\n HostName real\nMatch host real\n User m\nMatch originalhost a\n Port 5\n",
    "match user": "Host a\n User root\nMatch user root host a,b\n Port 5\nMatch user !root\n Port 6\n",
    "match false, then more": "Match host no user root exec false\n Port 5\nMatch originalhost a\n Port 6\n",
    "match all": "Match all\n User everybody\n",
    "match exec": 'Match host a exec "test %n = a"\n Port 5\nMatch exec false\n Port 6\n User no\n',
    "match negated exec": "Match !exec false\n Port 5\n",
    "match final": "Match final\n User late\n HostName x\nMatch canonical\n Port 6\nHost a\n Port 5\n",
    "host lines of a final pass": "Host *.lab\n User u\nHost a\n HostName %h.lab\nMatch final all\n",
    "include": "Host a\n Include inner\nHost b\n Include other\nHost *\n User after\n",
    "include a glob": "Include conf.d/*.conf\nHost a\n User late\n",
    "include a folder": "Include conf.d\nHost a\n User late\n",
    "known hosts": "Host a\n UserKnownHostsFile ~/kh1 /kh2\n GlobalKnownHostsFile /g1\n",
    "known hosts quoted": 'Host a\n UserKnownHostsFile "/with space/kh"\n',
    "alias and timeout": "Host a\n HostKeyAlias al\n ConnectTimeout 1M30s\n AddressFamily inet6\n Port ssh\n",
    "identities only": "Host a\n IdentitiesOnly yes\n IdentityAgent none\n",
}

FILES = {
    "inner": "User from-inner\nHost zzz\n User never\nHost a\n Port 77\n",
    "other": "HostName wrong\n",
    "conf.d/1.conf": "Host a\n User one\n",
    "conf.d/2.conf": "Host a\n User two\n Port 9\n",
}


@pytest.fixture
def home() -> Path:
    """OpenSSH takes the home from passwd, not from HOME: so do we here."""
    return Path("~root").expanduser() if Path("~root").expanduser().exists() else Path.home()


def by_openssh(config: Path) -> dict[str, list[str]]:
    done = run_to_end(["ssh", "-G", "-F", str(config), "a"], check=True)
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key, []).append(value)
    return found


def as_openssh(options: SshOptions) -> dict[str, list[str]]:
    jump, seconds = ",".join(options.proxy_jump), options.connect_seconds
    return {
        "hostname": [options.hostname],
        "user": [options.user],
        "port": [str(options.port)],
        "proxyjump": [jump] if jump else [],
        "identitiesonly": ["yes" if options.identities_only else "no"],
        "connecttimeout": ["none" if seconds == DEFAULT_CONNECT_SECONDS else f"{seconds:.0f}"],
        "hostkeyalias": [options.host_key_name] if options.host_key_name else [],
    }


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh here")
@pytest.mark.parametrize("name", CASES)
def test_we_read_what_openssh_reads(name: str, tmp_path: Path, home: Path) -> None:
    # -F makes includes relative to ~/.ssh, which is not ours to write: they are made absolute.
    for file, text in FILES.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    config = tmp_path / "config"
    config.write_text(CASES[name].replace("Include ", f"Include {tmp_path}/"))
    theirs = by_openssh(config)
    options = SshConfig(config, home=home).lookup("a")
    for key, values in as_openssh(options).items():
        assert values == theirs.get(key, []), key
    if options.identities_given:
        said = [value.replace("~/", f"{home}/") for value in theirs["identityfile"]]
        expanded = [value.replace("%d", str(home)) for value in said]
        if "%" not in "".join(expanded):
            assert list(options.identity_files) == expanded
    if name.startswith("known hosts"):
        theirs_known = theirs["userknownhostsfile"][0].replace("~/", f"{home}/")
        assert " ".join(options.user_known_hosts) == theirs_known
    theirs_command = theirs.get("proxycommand", [""])[0]
    assert (options.proxy_command or "").split()[:1] == theirs_command.split()[:1]


def test_tokens_are_replaced(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "Host a\n HostName h\n User u\n Port 5\n IdentityFile %d/%h-%r-%n-%p-%%\n"
        " ProxyCommand nc '%h' %p %r %n\n UserKnownHostsFile ${KH}/known\n"
    )
    options = SshConfig(config, home=tmp_path, environ={"KH": "/kh"}).lookup("a")
    assert options.identity_files == (f"{tmp_path}/h-u-a-5-%",)
    assert options.proxy_command == "nc 'h' 5 u a"
    assert options.user_known_hosts == ("/kh/known",)
    with pytest.raises(ConfigError, match=r"\$\{KH\}/known: KH is not set"):  # as ssh
        SshConfig(config, home=tmp_path, environ={}).lookup("a")


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host a\n User u\n Port 5\nMatch user me\n HostName mine\n")
    options = SshConfig(config, home=tmp_path).lookup("a", user="me", port=7)
    assert (options.user, options.port, options.hostname) == ("me", 7, "mine")


def test_the_agent_is_the_environment_s_unless_said_otherwise(tmp_path: Path) -> None:
    environ = {"SSH_AUTH_SOCK": "/env/agent", "OTHER": "/other"}
    for line, agent in {
        "": "/env/agent",
        "IdentityAgent SSH_AUTH_SOCK": "/env/agent",
        "IdentityAgent none": None,
        "IdentityAgent ~/a": f"{tmp_path}/a",
        "IdentityAgent $OTHER": "/other",
    }.items():
        config = tmp_path / "config"
        config.write_text(f"Host a\n {line}\n")
        assert (
            SshConfig(config, home=tmp_path, environ=environ).lookup("a").identity_agent == agent
        )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Host a\n= x\n", ":2:"),
        ('Host a\n HostName "x\n', ":2:"),
        ("Host a\n Port many\n", ":2: 'many'"),
        ("Match host\n", ":1:"),
        ("Include config\n", "nest deeper"),
    ],
)
def test_a_meaningless_file_is_a_config_error(text: str, words: str, tmp_path: Path) -> None:
    config = tmp_path / ".ssh" / "config"
    config.parent.mkdir()
    config.write_text(text)
    with pytest.raises(ConfigError) as caught:
        SshConfig(config, home=tmp_path).lookup("a")
    assert words in caught.value.message


def test_a_file_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        SshConfig(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "hop"),
    [
        ("h", (None, "h", None)),
        ("u@h:99", ("u", "h", 99)),
        ("ssh://u@h:99/", ("u", "h", 99)),
        ("u@[fe80::1]:99", ("u", "fe80::1", 99)),
        ("[fe80::1]", (None, "fe80::1", None)),
        ("fe80::1", (None, "fe80::1", None)),
    ],
)
def test_a_hop_is_taken_apart(text: str, hop: tuple[str | None, str, int | None]) -> None:
    host = hop_host(text)
    assert (host.user, host.name, host.port) == hop


@pytest.mark.parametrize(
    ("alias", "user"),
    [
        ("a", "$(touch${IFS}/x)"),
        ("a", "`touch /x`"),
        ("a", "x;touch"),
        ("a", "-oProxyCommand=touch"),
        ("a", "me -oProxyCommand=touch"),
        ("a", "me\\"),
        ("a", "me\n"),
        ("$(touch)", "me"),
        ("a b", "me"),
        ("-a", "me"),
        ("a|b", "me"),
    ],
)
def test_no_name_reaches_a_shell_with_a_command(alias: str, user: str, tmp_path: Path) -> None:
    """As OpenSSH from 9.6 on: ProxyCommand and Match exec are shell commands with names in them."""
    ran = tmp_path / "ran"
    config = tmp_path / "config"
    config.write_text(f'Match exec "touch {ran}; true %r %n"\n ProxyCommand nc %h %r\n')
    with pytest.raises(ConfigError, match=r"is not a (user|host)"):
        SshConfig(config).lookup(alias, user)
    assert not ran.exists()


def test_a_name_that_only_the_configuration_has_is_looked_at_too(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host a\n HostName x;touch\nHost b\n User $(touch)\n")
    for alias in ("a", "b"):
        with pytest.raises(ConfigError, match=r"is not a (user|host)"):
            SshConfig(config).lookup(alias)


@pytest.mark.parametrize("user", ["me", "DOM\\me", "me@corp.example", "host$", "J. Doe", "_svc-1"])
def test_users_of_all_kinds_are_reached(user: str, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host a\n HostName fe80::1%eth0\n")
    assert SshConfig(config).lookup("a", user).user == user


def test_a_line_is_added_behind_others_or_to_a_file_of_its_owners_alone(tmp_path: Path) -> None:
    file, lines = tmp_path / ".ssh" / "known_hosts", [f"{name} ssh-ed25519 AAAA" for name in "abc"]
    add_line(str(file), lines[0])
    assert file.read_text() == f"{lines[0]}\n"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    file.write_text(lines[0])
    for line in lines[1:]:
        add_line(str(file), line)
    assert file.read_text().splitlines() == lines
    with pytest.raises(ConfigError, match="cannot be written: Is a directory"):
        add_line(str(tmp_path), lines[0])
