# For the scripts beside it: `source environment.sh PACKAGE==VERSION...` installs the packages from PyPI into an
# environment in a temporary folder, which goes when the script ends, and names its interpreter in $python.
set -euo pipefail
folder=$(mktemp --directory)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/environment"
python=$folder/environment/bin/python
"$python" -m pip install --quiet --disable-pip-version-check "$@"

# conclude SEEN NOW LINE: prints LINE if the output NOW is SEEN, as it was when the script was written, and fails
# otherwise.
conclude() {
  diff <(echo "$1") <(echo "$2") || { echo "changed: $3"; exit 1; }
  echo "$3"
}
