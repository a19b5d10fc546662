"""The metadata of a job in a file: every field that may stand there, and nothing else.

The API server's answer to a misspelt field or a bad label comes late, so a file is checked here.
The fields that the API server sets are accepted, for files from `kubectl get -o yaml`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field

from ddpjob_operator.api.base import Model
from ddpjob_operator.api.rule import ITSELF, Rule
from ddpjob_operator.api.spec.fields import DnsLabel

SEGMENT = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
DOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
MAX_SEGMENT, MAX_DOMAIN = 63, 253


def _is_key(key: str) -> bool:
    domain, slash, name = key.rpartition("/")
    if slash and not (re.fullmatch(DOMAIN, domain) and len(domain) <= MAX_DOMAIN):
        return False
    return re.fullmatch(SEGMENT, name) is not None and len(name) <= MAX_SEGMENT


def _is_value(value: str) -> bool:
    return not value or (re.fullmatch(SEGMENT, value) is not None and len(value) <= MAX_SEGMENT)


KEY = Rule(
    message="'%s' is not a valid key; use letters, digits, '-', '_' and '.', with a letter or digit "
    f"first and last, {MAX_SEGMENT} at most, after an optional domain and '/'",
    values=(ITSELF,),
    check=_is_key,
)
VALUE = Rule(
    message="'%s' is not a valid value of a label; use letters, digits, '-', '_' and '.', with a "
    f"letter or digit first and last, {MAX_SEGMENT} at most",
    values=(ITSELF,),
    check=_is_value,
)
NO_GENERATED_NAME = Rule(
    message="'%s' stands for a name that `ddpjob apply` does not generate; give name",
    values=(ITSELF,),
    check=lambda _: False,
)
Key = Annotated[str, KEY]


class FileMetadata(Model):
    """The metadata of a job in a file."""

    name: str = Field(description="Name of the job, unique in its namespace.")
    namespace: DnsLabel | None = Field(default=None, description="Namespace of the job.")
    generate_name: Annotated[str, NO_GENERATED_NAME] | None = Field(default=None, description="")
    labels: dict[Key, Annotated[str, VALUE]] | None = Field(
        default=None, description="Labels of the job."
    )
    annotations: dict[Key, str] | None = Field(default=None, description="Annotations of the job.")
    finalizers: list[str] | None = Field(default=None, description="Finalizers of the job.")
    owner_references: list[dict[str, Any]] | None = Field(
        default=None, description="Objects that own the job."
    )
    # Set by the API server.
    uid: Any = Field(default=None, description="")
    resource_version: Any = Field(default=None, description="")
    generation: Any = Field(default=None, description="")
    creation_timestamp: Any = Field(default=None, description="")
    deletion_timestamp: Any = Field(default=None, description="")
    deletion_grace_period_seconds: Any = Field(default=None, description="")
    managed_fields: Any = Field(default=None, description="")
    self_link: Any = Field(default=None, description="")
