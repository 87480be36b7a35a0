#!/usr/bin/env bash
# pytorch-ignite expands Slurm's `node[0-3]` to node00, node01, …: it meets at a host that does not exist.
#
# Package:  pytorch-ignite 0.5.5; ClusterShell 1.9.3 for comparison.
# Expected: what `scontrol show hostnames` prints, which it stands in for where there is no scontrol, as in a container
#           ("expand hostname list as scontrol", ignite/distributed/comp_models/native.py). Slurm:
#           "lx[15,18,32-33]", "linux[00-17]" (https://slurm.schedmd.com/slurm.conf.html, NodeName): as many digits as
#           are written. scontrol 22.05.8 prints n0 n1 n2 n3, n00 n01 and n098 n099 n100.
# Seen:     leading zeros are counted, not digits, and "0" and "00" count as all zeros: n[0-3] begins with n00, n[00-01]
#           with n000, n[098-100] with n98. The first name becomes MASTER_ADDR.
# Upstream: no issue found in pytorch/ignite (#2203 and #2208 are about prefixes and suffixes). The source is that of
#           LLNL/py-hostlist. 2026-11-28.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps pytorch-ignite==0.5.5 ClusterShell==1.9.3 PyYAML==6.0.3

# Importing ignite needs torch, of which this function uses nothing: take it out of the installed file.
cat >"$folder/hosts.py" <<'EOF'
import ast, re, sys, sysconfig, textwrap
from importlib.metadata import version
from pathlib import Path

from ClusterShell.NodeSet import NodeSet

source = Path(sysconfig.get_path("purelib"), "ignite/distributed/comp_models/native.py").read_text()
function = next(
    each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.FunctionDef) and each.name == "_expand_hostlist"
)
names = {"re": re}
exec(textwrap.dedent(ast.get_source_segment(source, function, padded=True)), names)
print("package  pytorch-ignite", version("pytorch-ignite"))
as_described = True
for nodelist, wrong in (("n[0-3]", "n00"), ("n[00-01]", "n000"), ("n[098-100]", "n98"), ("n[1-3]", "n1")):
    expected, seen = list(NodeSet(nodelist)), names["_expand_hostlist"](nodelist)
    print(f"{nodelist:12} expected {expected}, seen {seen}")
    as_described &= seen[0] == wrong
sys.exit(not as_described)
EOF
"$folder/venv/bin/python" "$folder/hosts.py"
