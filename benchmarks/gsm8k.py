"""GSM8K: strategies against each other on grade-school maths, or with --url a running server and its answers.

Takes the options of `lightspec bench`: see --help, and --url URL --help.
"""

import sys

from lightspec_lightllm.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "--dataset", "gsm8k", *sys.argv[1:]]))
