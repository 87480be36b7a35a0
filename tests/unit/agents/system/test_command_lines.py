"""What an interpreter runs is read from its words as Python reads them, and the console's zipapp is ours by its name.
Digests without OpenSSL are those that it makes.
"""

import hashlib
import hmac

import pytest

from distconsole.rpc.pack import Pack
from distconsole_agent.system.command_lines import is_ours, read_target, split_words
from distconsole_agent.system.sha256 import DIGEST_BYTES, equal_digests, hmac_sha256, sha256


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("python3 train.py --lr 1", ("", "train.py", ("--lr", "1"))),
        ("python3 -uB -W ignore -Xdev train.py", ("", "train.py", ())),
        ("python3 -m torch.distributed.run t.py", ("-m", "torch.distributed.run", ("t.py",))),
        ("python3 -Imjson.tool x", ("-m", "json.tool", ("x",))),
        ("python3 -c pass -m distconsole", ("-c", "pass", ("-m", "distconsole"))),
        ("python3 --check-hash-based-pycs never - x", ("", "-", ("x",))),
        ("python3 -m", ("-m", "", ())),
        ("python3", ("", "", ())),
        ("", ("", "", ())),
    ],
)
def test_the_target_of_an_interpreter(line: str, target: tuple[str, str, tuple[str, ...]]) -> None:
    assert read_target(line.split()) == target


def test_the_words_of_a_process_keep_what_is_empty_among_them() -> None:
    assert split_words(b"sh\0-c\0\0x\0") == ("sh", "-c", "", "x")
    assert split_words(b"") == ()
    assert split_words(b"sshd: root@notty") == ("sshd: root@notty",)


def test_the_zipapp_of_the_console_is_ours() -> None:
    assert is_ours(["python3", "-E", f"/h/.cache/{Pack(b'agent').name}", "agent"])
    assert not is_ours(["vim", f"/h/{Pack(b'agent').name}.log"])


@pytest.mark.parametrize("key_bytes", [0, 1, 32, 63, 64, 65, 200])
@pytest.mark.parametrize("text_bytes", [0, 1, 64, 1000])
def test_digests_are_those_of_openssl(key_bytes: int, text_bytes: int) -> None:
    key, text = bytes(range(200))[:key_bytes], b"\xff\x00a" * text_bytes
    assert sha256(text).digest() == hashlib.sha256(text).digest()
    assert hmac_sha256(key, text) == hmac.digest(key, text, "sha256")


def test_digests_are_equal_only_where_every_byte_is() -> None:
    digest = sha256(b"a").digest()
    assert len(digest) == DIGEST_BYTES
    assert equal_digests(digest, sha256(b"a").digest())
    assert not equal_digests(digest, digest[:-1] + b"\0")
    assert not equal_digests(digest, digest[:-1])
