"""A process that has imported everything once, and forks one child per job: imports take longer than a job."""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from pathlib import Path

from tests.adapters.lightllm.harness import checkout, job, job_process, virtual_cuda


def import_everything(*, plugin: bool) -> None:
    """Virtual device, then the plugin's hooks if asked for, then LightLLM, as the launcher's order is.

    Nothing that LightLLM imports reads start arguments, which are a job's.
    """
    sys.path.insert(0, str(checkout.path()))
    virtual_cuda.install()
    if plugin:
        from lightspec_lightllm.adapters.lightllm import hooks

        hooks.install()
    from lightllm.server.router.model_infer import model_rpc  # noqa: F401 - the import is what is wanted

    # LightLLM collects garbage at each warm-up step; what is here by now lives to the end.
    gc.collect()
    gc.freeze()


def serve(*, plugin: bool) -> None:
    """Read lines ``{"job", "result", "log"}`` of paths; answer each with ``{"exit_code"}`` once its child has ended."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # LightLLM logs to standard output
    import_everything(plugin=plugin)
    answers.write('"ready"\n')
    answers.flush()
    for line in sys.stdin:
        paths = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(run(Path(paths["job"]), Path(paths["result"]), Path(paths["log"])))
        _, status = os.waitpid(child, 0)
        answers.write(json.dumps({"exit_code": os.waitstatus_to_exitcode(status)}) + "\n")
        answers.flush()


def run(what: Path, result: Path, log: Path) -> int:
    """Exit code of a job in this process; everything that it prints goes to ``log``."""
    os.setpgid(0, 0)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        job_process.run(job.read_job(what), result)
    except BaseException:  # noqa: BLE001 - whatever it was goes into the log, and the code says so
        traceback.print_exc()
        return 1
    return 0
