#!/usr/bin/env bash
# Run the tests of what is committed in a folder with a space in its name and, for root, as the user nobody, who may
# write nowhere else. Arguments go to pytest.
set -euo pipefail

here=$(CDPATH='' cd "$(dirname "$0")/.." && pwd)
# shellcheck source=scripts/environment.sh disable=SC1091 # without -x it is not followed
source "$here/scripts/environment.sh"
txl_python "$here" requirements-dev.txt
folder=$(mktemp -d "${TMPDIR:-/tmp}/txl as another user.XXXXXX")
trap 'rm -rf "$folder"' EXIT
git clone --quiet "$here" "$folder/clone"
mkdir "$folder/home"
as_user=()
if [ "$(id -u)" -eq 0 ]; then
    chmod 755 "$folder"
    chown -R nobody "$folder/clone" "$folder/home"
    as_user=(setpriv --reuid nobody --regid nogroup --clear-groups)
    # shellcheck disable=SC2016,SC2154 # the inner bash expands it; environment.sh sets python
    if ! "${as_user[@]}" bash -c '"$0" -c ""' "$python" 2>/dev/null; then
        # this Python lies where only root may look: read everything, write nothing
        as_user+=(--inh-caps +dac_read_search --ambient-caps +dac_read_search)
    fi
fi
cd "$folder/clone"
HOME=$folder/home TMPDIR=$folder/home PYTHON=$python "${as_user[@]}" ./run_tests.sh -p no:cacheprovider "$@"
