"""Fields of requests: how strictly they are read, and those that have one meaning only on this server."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

from lightspec_lightllm.server.errors import shown

MAX_SEED = 2**63 - 1


class RequestModel(BaseModel):
    """Numbers are finite, strings are no numbers, and a field that is not known is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Only:
    """Annotates a field that clients send and that changes nothing here: any value but these is refused."""

    def __init__(self, *allowed: Any) -> None:
        self._allowed = allowed

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"enum": list(self._allowed)}

    def _check(self, value: Any) -> Any:
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in self._allowed):
            names = " or ".join(map(repr, self._allowed))
            raise ValueError(f"this server supports only {names}, got {shown(value)}")
        return value


class LightspecOptions(RequestModel):
    """What this server can do beside the API.

    Attributes:
        detail: report drafts, verified drafts and accept length of every round of the answer.
    """

    detail: bool = False


def _whole(text: str) -> str:
    """JSON can spell half of a UTF-16 pair, which is no character."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"expected text, got a lone surrogate in {shown(text)}")
    return text


Text = Annotated[str, AfterValidator(_whole)]
Seed = Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED)]
StopText = Annotated[Text, Field(min_length=1)]
StopTexts = Annotated[list[StopText], Field(max_length=16)]
