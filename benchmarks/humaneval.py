"""HumanEval: strategies against each other on code. Takes the options of `lightspec bench`."""

import sys

from lightspec_lightllm.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "--dataset", "humaneval", *sys.argv[1:]]))
