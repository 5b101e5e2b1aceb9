"""Command line: write the models, run one job, or be the process that jobs are forked from."""

import argparse
import os
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.adapters.lightllm.harness", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    models = commands.add_parser("models", help="write the tiny models to a folder")
    models.add_argument("folder", type=Path)
    run = commands.add_parser("run", help="run the job of a JSON file and write its result")
    run.add_argument("job", type=Path)
    run.add_argument("result", type=Path)
    serve = commands.add_parser("serve", help="run jobs whose paths come on standard input, each in a fork")
    serve.add_argument("--plugin", action="store_true", help="install the plugin's hooks before LightLLM is imported")
    arguments = parser.parse_args()

    if arguments.command == "models":
        from tests.adapters.lightllm.harness.models import write_models

        sys.stdout.write(f"{write_models(arguments.folder).folder}\n")
    elif arguments.command == "run":
        from tests.adapters.lightllm.harness import job, job_process, preload

        what = job.read_job(arguments.job)
        preload.import_everything(plugin=what.lightspec is not None)
        job_process.run(what, arguments.result)
        sys.stdout.flush()
        os._exit(0)  # LightLLM's shared memory does not survive the interpreter's own clean-up quietly
    else:
        from tests.adapters.lightllm.harness import preload

        preload.serve(plugin=arguments.plugin)


if __name__ == "__main__":
    main()
