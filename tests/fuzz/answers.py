"""Target: the reports of a rendezvous service, as the operator reads them."""

from __future__ import annotations

from typing import Any

from ddpjob_protocol.codec import DecodeError, encode
from ddpjob_protocol.keys.signed_http import ForgedError, RequestSigner
from ddpjob_protocol.parsers.service_report import parse_report
from fuzz.target import Form, Target, of_json, to_json
from support.answers import FULL, check
from support.keys import KEY


def read_answer(value: Any) -> None:
    signer = RequestSigner(KEY.operator)
    try:
        signer.open(value, "n")
    except ForgedError:
        pass
    else:
        raise AssertionError("a proof without the key")
    check(parse_report(value))


TARGETS = (
    Target("answers", Form.JSON, of_json(read_answer), to_json(encode(FULL)), (DecodeError,)),
)
