#!/bin/bash
# A training behind a line that prepares its environment, which for the culprits never comes back.
[[ "$*" == *"--place prepare "* && "$*" =~ --odd\ ([0-9,]+) && ",${BASH_REMATCH[1]}," == *",${RANK:-$HOROVOD_RANK},"* ]] &&
    echo "FAULT $(date +%s.%3N)" && sleep 1000000
exec python "$(dirname "$0")/job.py" "$@"
