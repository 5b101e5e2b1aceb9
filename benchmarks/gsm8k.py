"""GSM8K: strategies against each other on grade-school maths. Takes the options of `lightspec bench`."""

import sys

from lightspec_lightllm.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "--dataset", "gsm8k", *sys.argv[1:]]))
