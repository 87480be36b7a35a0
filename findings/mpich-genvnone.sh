#!/usr/bin/env bash
# mpiexec -genvnone, -genvlist and -envnone of MPICH (and -genvnone, -genvlist of Intel MPI) pass all variables to ranks
# on the machine of mpiexec all the same.
#
# Package:  mpich 5.0.2 and impi-rt 2021.19.0 (PyPI).
# Expected: "-genvnone: do not pass any environment variables", "-genvlist {env1,env2,...}: environment variable list to
#           pass", "-envnone: do not pass any environment variables" (`mpiexec --help` of both).
# Seen:     the rank has a variable that was to stay out, in each of the ways: the proxy, a child of mpiexec, hands
#           down its own environment. So a test on one machine works with a variable that ranks on other machines lack.
# Upstream: no issue found in pmodels/mpich (#1454 is on the contrary: not passed although asked). 2026-11-28.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for package in mpich==5.0.2 impi-rt==2021.19.0; do
    "${PYTHON:-python3}" -m venv "$folder/${package%%=*}"
    "$folder/${package%%=*}/bin/pip" install -q --disable-pip-version-check --no-deps "$package"
done
export I_MPI_ROOT=$folder/impi-rt KEPT_OUT=here ASKED_FOR=yes
as_described=0
for each in "mpich -genvnone" "mpich -envnone" "mpich -genvlist ASKED_FOR" "mpich -envlist ASKED_FOR" \
    "impi-rt -genvnone" "impi-rt -genvlist ASKED_FOR"; do
    read -r package options <<<"$each"
    # shellcheck disable=SC2086
    seen=$("$folder/$package/bin/mpiexec" $options -n 1 bash -c 'echo "${KEPT_OUT-unset}"' </dev/null)
    printf '%-8s %-22s KEPT_OUT in the rank: expected unset, seen %s\n' "$package" "$options" "$seen"
    [ "$seen" = here ] || as_described=1
done
exit $as_described
