"""ShareGPT, or the MT-bench questions in its place: strategies against each other, or with --url a running server.

Takes the options of `lightspec bench`: see --help, and --url URL --help.
"""

import sys

from lightspec_lightllm.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "--dataset", "sharegpt", *sys.argv[1:]]))
