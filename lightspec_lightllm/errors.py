"""Every error this package raises on purpose.

::

    LightspecError                 catch this one to catch them all
    ├── ConfigError                a key, a type or a value of a configuration or a command line
    ├── ModelError                 a model file that is missing, truncated or of another architecture
    │   └── DownloadError          a file that could not be fetched
    ├── DatasetError               a dataset that is missing, empty or has bad records
    ├── CostTableError             a cost table that is empty, malformed or measured elsewhere
    ├── EndpointError              a server under measurement that cannot be reached or speaks another API
    ├── RequestError               a request that can never be served as it was asked
    ├── FeedbackError              feedback that cannot have come from a round
    ├── PlanError                  a plan outside what the batch allows
    ├── EngineError                the server's engine cannot start or has ended
    ├── ApiError                   an answer of the server that is an error (server/errors.py)
    ├── HostError                  LightLLM is missing, or not the one that this package fits
    └── SlotError                  a token slot lost, owned twice or freed twice

A message says what was expected, what came, and what to do about it.
"""


class LightspecError(Exception):
    """Base of all errors raised on purpose by this package."""


class ConfigError(LightspecError, ValueError):
    """A configuration or command-line value is unknown, of the wrong type or out of range."""


class ModelError(LightspecError):
    """A model file cannot be used."""


class DownloadError(ModelError):
    """A file could not be fetched, or is not the file that was expected."""


class DatasetError(LightspecError):
    """A dataset cannot be read, is empty, or has records of another form."""


class CostTableError(LightspecError, ValueError):
    """A cost table is empty, malformed, or belongs to another model, device or version."""


class EndpointError(LightspecError):
    """A server that is to be measured cannot be reached, or does not answer as the API it was asked for says."""


class EngineError(LightspecError):
    """The server's engine cannot be started, or has ended for good."""


class RequestError(LightspecError, ValueError):
    """A request cannot be served as asked: too long, or with impossible sampling parameters."""


class FeedbackError(LightspecError, ValueError):
    """Feedback has a shape or a value that no round can produce."""


class PlanError(LightspecError, ValueError):
    """A plan is outside the limits of the batch it was made for."""


class HostError(LightspecError):
    """LightLLM is missing, is not the one that this package fits, or runs without what it needs."""


class SlotError(LightspecError):
    """Token slots are not conserved: one is lost, owned twice or freed twice."""
