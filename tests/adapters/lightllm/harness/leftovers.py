"""What LightLLM leaves behind when it is killed: lock files, sockets and shared memory with its service's name."""

from pathlib import Path

LOCKS_AND_SOCKETS = Path("/tmp")  # noqa: S108 - where LightLLM puts them, whatever TMPDIR says
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux puts it


def remove(service: str, *folders: Path) -> None:
    """Remove the files of a service that has ended; ``service``: LightLLM's unique service name."""
    for folder in folders:
        for path in folder.glob(f"*{service}*"):
            path.unlink(missing_ok=True)
