"""``python -m lightspec_lightllm.api_server``: LightLLM's own launcher, which then also takes ``--dynamic_mtp``.

Takes all arguments of ``python -m lightllm.server.api_server`` and, without ``--dynamic_mtp``, does the same. LightLLM
spawns its processes, and a spawned process runs this module again, so the hooks are in all of them.
"""

import sys

from lightspec_lightllm.adapters.lightllm.hooks import install
from lightspec_lightllm.errors import HostError


def main() -> None:
    """Parse LightLLM's arguments and ours, and serve until interrupted."""
    from lightllm.server.api_cli import make_argument_parser
    from lightllm.server.api_server import launch_server
    from lightllm.server.core.objs.start_args_type import StartArgs

    launch_server(StartArgs(**vars(make_argument_parser().parse_args())))


if __name__ in ("__main__", "__mp_main__"):
    try:
        install()
    except HostError as error:
        sys.exit(f"error: {error}")
if __name__ == "__main__":
    main()
