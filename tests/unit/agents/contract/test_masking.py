"""What is hidden of command lines, shell text and variables."""

import shlex

import pytest

from distconsole_agent.contract.masking import mask_env, mask_text, mask_words, may_be_secret

SECRET = "s3cr'et; \"x"


@pytest.mark.parametrize(
    "words",
    [
        ("--api-key", SECRET),
        ("-token", SECRET),
        (f"--api-key={SECRET}",),
        (f"--api_key={SECRET}",),
        (f"logger.api_key={SECRET}",),
        (f"+logger.api_key={SECRET}",),
        (f"++a.b_key={SECRET}",),
        (f"trainer.logger={{entity:x,api_key={SECRET}}}",),
        (f"--env=WANDB_API_KEY={SECRET}",),
        ("sh", "-c", f"cd /x && DB_PASS={shlex.quote(SECRET)} exec python t.py --lr 1"),
        ("sh", "-c", f"python t.py --auth-token {shlex.quote(SECRET)} --lr 1"),
        ('{"lr": 1, "api_key": "s3cr x", "n": 2}',),
        ("--conf", '{"password":"s3cr x"}'),
        ("https://user:s3cr@host/x",),
        ("https://h/?a=1&access_token=s3cr",),
        ("Authorization: Bearer s3cr0123456789",),
        ("curl", "-H", "X-Api-Key: s3cr and 's3cr'"),
        ("curl", "-H", "X-Api-Key:s3cr"),
        ("set", "-gx", "HF_TOKEN", SECRET),
        ("AWS_SECRET_ACCESS_KEY: s3cr",),
        ("error: password: s3cr",),
        ("Authorization: Basic s3cr",),
        ("https://s3cr:x-oauth-basic@github.com/x",),
        ("https://s3cr:@host/x",),
        ("[token=s3cr]",),
        ("a:token=s3cr",),
        (f"HF_TOKEN+={SECRET}",),
        ("setenv", "HF_TOKEN", SECRET),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0.s3cr",),
        ("/usr/bin/sshpass", "-p", SECRET, "ssh", "host"),
        ("sshpass", "-ps3cr", "ssh", "host"),
        ("curl", "-s", "-u", f"bob:{SECRET}", "https://host/x"),
        ("mysql", "-ps3cr", "table"),
        ("redis-cli", "-a", SECRET, "ping"),
        ("redis-server", "--requirepass", SECRET),
    ],
)
def test_a_secret_is_hidden_in_each_spelling(words: tuple[str, ...]) -> None:
    assert "s3cr" not in " ".join(mask_words(words))
    line = shlex.join((*words, "--lr", "0.1", "last word"))
    assert "s3cr" not in mask_text(line)
    assert mask_text(line).endswith("--lr 0.1 'last word'")
    assert mask_text(mask_text(line)) == mask_text(line)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x --token \\\n  s3cr \\\n  --lr 1", "x --token \\\n  *** \\\n  --lr 1"),
        ("x --auth-\\\ntoken s3cr y", "x --auth-\\\ntoken *** y"),
        ("HF_TOKEN=a\\\ns3cr x", "HF_TOKEN=*** x"),
        ("HF_TOKEN=$(echo s3cr) x", "HF_TOKEN=*** x"),
        ("HF_TOKEN=a$(echo $(cat s3cr) ')' s3cr)b$(s3cr) x", "HF_TOKEN=*** x"),
        ("X=$(HF_TOKEN=`echo s3cr` y) x", "X=$(HF_TOKEN=*** y) x"),
        ("x --token $(echo s3cr) y", "x --token *** y"),
        ("setenv HF_TOKEN `echo s3cr`; x", "setenv HF_TOKEN ***; x"),
        ("a: 1\npassword: s3cr s3cr\nb: 2", "a: 1\npassword: ***\nb: 2"),
        ("sent Authorization: Basic s3cr", "sent Authorization: ***"),
    ],
)
def test_a_value_of_several_words_is_hidden_whole(text: str, shown: str) -> None:
    assert mask_text(text) == shown
    assert mask_text(shown) == shown


@pytest.mark.parametrize(
    "piece",
    ["token=", "token $(a(", "token: ", "a_token=`", "$(", "x=$(", "'", '"$(', "\\\n", "a ", ":"],
)
def test_every_text_is_read_once(piece: str) -> None:
    """A pattern that goes back over all of it would not end before the test is given up."""
    for text in ("token " + piece * 20_000, "token=$(" + piece * 20_000):
        assert len(mask_text(text)) <= len(text) + 10


@pytest.mark.parametrize(
    "text",
    [
        "python train.py --max-tokens 10 --tokenizer gpt2 'a b' \"c d\" $HOME",
        "mkdir -p /a; ssh -p 22 host; docker run -p 80:80 -u me x",
        "sshpass -p '***' ssh -p 22 host",
        "it's a step; loss=0.1 & more | less",
        "source ~/venv/bin/activate && module load cuda/12",
        "https://host/path?page=1",
        '{"lr": 1, "name": "x"}',
        "GIT_AUTHOR_NAME=me PATH=/bin",
        "loss per token: 3.21, step 4",
        "time a token: 5.2ms | loss: 0.1",
        "docker run --image reg-secret:5000/x:1 --host auth-token:8080 --map api-key:0.5",
        "connect auth-token:8080 refused; You must set auth method basic, or set token to None",
        "set -euo pipefail; set -x; set pad_token eos",
        "python t.py \\\n  --lr $(cat lr) \\\n  --tokens `nproc` key: value",
    ],
)
def test_what_is_no_secret_stays_as_it_is(text: str) -> None:
    assert mask_text(text) == text
    assert mask_words([text]) == [text]


def test_what_a_program_complains_of_is_shown() -> None:
    text = "AuthenticationError: digest sent; tokenizer: gpt2; private-tool: command not found"
    assert mask_text(text) == text


@pytest.mark.parametrize(
    "name",
    ["SLURM_JWT", "DB_PASS", "AWS_CREDS", "X_AUTH", "GH_PAT", "--jwt", "OMPI_MCA_pass", "My.Cred"],
)
def test_names_of_tokens_are_known(name: str) -> None:
    assert may_be_secret(name)
    assert mask_env({name: "x"}) == {name: "***"}


def test_names_that_only_look_so_are_shown() -> None:
    names = (
        "pass_args",
        "BYPASS",
        "SLURM_JOBID",
        "NCCL_DEBUG",
        "num_tokens",
        "compass",
        "forward_passes",
    )
    assert [name for name in names if may_be_secret(name)] == []
