#!/bin/sh
# Makes sure that there is a Chromium to drive pages with, and prints the folder it is in where that
# is not on the PATH: build/browser, filled by Playwright's installer (needs a network, 200 MB).
set -eu

for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done

folder=$PWD/build/browser
if [ ! -x "$folder/bin/chromium" ]; then
    echo "no Chromium on the PATH: installing one into build/browser" >&2
    mkdir -p "$folder/bin"
    .venv/bin/python -m pip install --quiet --target "$folder/python" playwright >&2
    PYTHONPATH=$folder/python PLAYWRIGHT_BROWSERS_PATH=$folder \
        .venv/bin/python -m playwright install --no-shell chromium >&2
    found=$(find "$folder" -type f -name chrome | head -n 1)
    if [ -z "$found" ]; then
        echo "Playwright installed no chrome in $folder; install Chromium with the system's" \
            "package manager instead" >&2
        exit 1
    fi
    ln -sf "$found" "$folder/bin/chromium"
fi
echo "$folder/bin"
