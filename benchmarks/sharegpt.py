"""ShareGPT, or the MT-bench questions standing in for it: chat. Takes the options of `lightspec bench`."""

import sys

from lightspec_lightllm.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "--dataset", "sharegpt", *sys.argv[1:]]))
