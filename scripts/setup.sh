#!/bin/sh
# Make .venv fit for this checkout, or say in one sentence why that cannot be.
#
# Called by every target of the Makefile. Does nothing (and takes no time) when .venv was
# completely installed from the pyproject.toml and constraints.txt that lie here now. The stamp
# that says so is written last: an interrupted installation is taken up again.
# PYTHON names the interpreter; without it the first fitting one on PATH is taken.
set -eu
cd "$(dirname "$0")/.."
here=$(pwd -P)
venv=$here/.venv
stamp=$venv/glmforge-installed
unfinished=$venv/glmforge-installing
supported="3.11, 3.12 or 3.13"
wanted=${PYTHON:-}

say() { printf '%s\n' "== $*" >&2; }
fail() {
    printf '%s\n' "glmforge: $*" >&2
    exit 1
}

# Print the version of an interpreter as MAJOR.MINOR.PATCH, or nothing if it does not run.
version_of() { "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null || true; }

fits() { case $1 in 3.11.* | 3.12.* | 3.13.*) true ;; *) false ;; esac }

# Set $python and $version to the interpreter that makes the environment.
choose_python() {
    found=""
    if [ -n "$wanted" ]; then
        set -- "$wanted"
    else
        set -- python3.12 python3.11 python3.13 python3
    fi
    for python in "$@"; do
        version=$(version_of "$python")
        if fits "$version"; then return 0; fi
        if [ -n "$version" ]; then found="$python is Python $version"; fi
    done
    if [ -n "$wanted" ] && [ -z "$found" ]; then found="PYTHON=$wanted does not run"; fi
    fail "Python $supported is needed, but ${found:-no python3 was found on PATH};" \
        "install one of them (Debian or Ubuntu: apt install python3 python3-venv) or name it:" \
        "make PYTHON=/path/to/python3.12"
}

# Print why the present .venv cannot be used; print nothing if it can.
venv_fault() {
    present=$(version_of "$venv/bin/python")
    if [ -z "$present" ]; then
        echo "its Python does not run any more"
    elif ! fits "$present"; then
        echo "it has Python $present, and $supported is needed"
    elif [ ! -f "$venv/bin/pip" ] || [ -f "$unfinished" ]; then
        echo "its installation was cut off"
    elif ! grep -qF "$venv/" "$venv/bin/pip"; then
        echo "it was made for another folder"
    elif [ -n "$wanted" ]; then
        asked=$(version_of "$wanted")
        if [ -n "$asked" ] && [ "${asked%.*}" != "${present%.*}" ]; then
            echo "it has Python $present, and PYTHON=$wanted is $asked"
        fi
    fi
}

# One line that changes whenever an installation has to be done again.
key() {
    cat pyproject.toml constraints.txt scripts/setup.sh | cksum | tr -d '\n'
    echo " $venv $(version_of "$venv/bin/python")"
}

# On a terminal pip draws its own progress; elsewhere only its errors are worth a line.
pip_install() {
    if [ -t 1 ]; then quiet=""; else quiet="-qq"; fi
    # DS_BUILD_OPS=0: DeepSpeed compiles none of its kernels at installation (no gcc needed).
    DS_BUILD_OPS=0 "$venv/bin/python" -m pip install $quiet --disable-pip-version-check \
        --constraint constraints.txt "$@" </dev/null && return
    # pip itself gave up, before it wrote anything. If it was killed, the mark stays: packages may
    # be half written.
    if [ $? -le 2 ]; then rm -f "$unfinished"; fi
    fail "the installation stopped; the reason stands above. Run make again when it is removed"
}

if [ -e "$venv" ]; then
    if [ -n "$(ls -A "$venv")" ] && [ ! -f "$venv/pyvenv.cfg" ]; then
        fail "$venv is in the way: it is not a Python environment; move it and run make again"
    fi
    fault=$(venv_fault)
    if [ -z "$fault" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(key)" ]; then exit 0; fi
else
    fault="none"
fi

begin=$(date +%s)
if [ -n "$fault" ]; then
    choose_python
    # Debian and Ubuntu package these two apart from python3.
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$python (Python $version) has no venv module; on Debian or Ubuntu install it with:" \
            "apt install python${version%.*}-venv"
    if [ "$fault" != "none" ]; then say "rebuilding .venv: $fault"; fi
    say "making .venv with $python (Python $version)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi
rm -f "$stamp"
: >"$unfinished"

say "installing, 1 of 2: torch (the largest part)"
pip_install torch setuptools wheel packaging
say "installing, 2 of 2: everything else, $(($(date +%s) - begin)) s so far"
# Without build isolation, because DeepSpeed's build asks the torch that is installed.
pip_install --no-build-isolation --editable '.[dev,serve]'

rm -f "$unfinished"
key >"$stamp"
say "installed in $(($(date +%s) - begin)) s"
