"""Fill the virtual environment named on the command line from requirements.lock; idempotent.

Runs on the system's Python, before anything of ours is installed, so it uses the standard library
only and stays readable by any Python 3. Whatever is missing is said in one line with the remedy.
"""

import os
import subprocess
import sys

OLDEST = (3, 11)


def stop(text):
    sys.exit("setup: " + text)


def check_machine():
    if sys.version_info < OLDEST:
        stop(
            "Python {}.{} is too old; 3.11 or newer is needed: make PYTHON=/path/to/python3.11".format(
                *sys.version_info[:2]
            )
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        stop("this Python has no venv module; on Debian: apt-get install python3-venv")


def run(*command):
    if subprocess.call(command) != 0:
        stop("this step failed: " + " ".join(command))


def main(folder):
    check_machine()
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(python):
        print("setup: making", folder)
        run(sys.executable, "-m", "venv", folder)
    print("setup: installing what requirements.lock names")
    quiet = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(python, *quiet, "--require-hashes", "-r", "requirements.lock")
    run(python, *quiet, "--no-deps", "--no-build-isolation", "--editable", ".")


if __name__ == "__main__":
    main(sys.argv[1])
