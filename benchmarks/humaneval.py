"""HumanEval: strategies against each other on code, or with --url a running server and, with --run-code, its answers.

Takes the options of `lightspec bench`: see --help, and --url URL --help.
"""

import sys

from lightspec_lightllm.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "--dataset", "humaneval", *sys.argv[1:]]))
