"""The KServe v2 protocol's inference: `/v2/models/{model}[/versions/{version}]/infer`, tensors in and tensors out.

`Inference` is the protocol without its transport: HTTP (here) brings tensors as JSON and binary data, gRPC
(`server.rpc`) as protobuf, and both answer with the tensors that `Inference` makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from interlingua.contract.dialect import Call, Dialect, DialectSettings, Reply, Route, WireRequest
from interlingua.contract.errors import RequestError, ValidationError
from interlingua.contract.events import Answer, Summary, TextEvent, TextStarted, TextStopped, TextToken
from interlingua.contract.request import GenerationRequest, Prompt, TextPart, TextPrompt, TokenPrompt
from interlingua.dialects import _errors
from interlingua.dialects._bounds import MAX_TENSORS
from interlingua.dialects._fields import note_unknown, object_field, read_field
from interlingua.dialects._json import Document, parse_object, show
from interlingua.dialects._kserve_openapi import describe
from interlingua.dialects._kserve_table import (
    BINARY_LENGTH,
    EXTRA_OUTPUTS,
    FLAGS,
    IDS_INPUT,
    IDS_OUTPUT,
    INPUTS,
    KNOWN_PARAMETERS,
    OUTPUTS,
    SAMPLING_INPUT,
    TEXT_OUTPUT,
)
from interlingua.dialects._tensors import BOOL, BYTES, MAX_NAME, UINT32, Tensor, TensorHead, Values, single
from interlingua.dialects._triton_table import COLUMN, ID, PARAMETERS, TEXT_INPUT
from interlingua.dialects.triton import STATUSES, VERSION, check_model, make_request

_ROOT_FIELDS = ("id", "inputs", "outputs", "parameters")


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """An output that the client asked for. `name` is what it is called in the answer."""

    kind: str  # a name of `OUTPUTS`
    name: str
    binary: bool = False


@dataclass(slots=True)
class Inference:
    """A decoded inference request: what to generate, and how its text becomes tensors."""

    request: GenerationRequest
    id: str
    model: str
    stream: bool
    outputs: tuple[WantedOutput, ...]
    prefix: str  # the prompt, when it belongs to the output
    rank: int  # of the prompt's tensor, and so of the text's
    prompt_tokens: int = 0  # known when the stream has started

    def whole(self, answer: Answer) -> list[Tensor]:
        """The tensors of a whole answer, one for each of `outputs`."""
        text = self.prefix + answer.summary.text
        return self._tensors(text, [token.id for token in answer.tokens], answer.summary)

    def piece(self, event: TextEvent) -> list[Tensor] | None:
        """The tensors of one event of a stream: new text and new ids alone; None = the event says nothing."""
        if isinstance(event, TextToken):
            # No flag tells a special token here, so its text must not be in the joined stream.
            return self._tensors("" if event.special else event.text, [event.id], event.summary)
        if isinstance(event, TextStopped):
            return self._tensors("", [], event.summary)
        if isinstance(event, TextStarted):
            self.prompt_tokens = event.prompt_tokens
        return None

    def _tensors(self, text: str, ids: Sequence[int], summary: Summary | None) -> list[Tensor]:
        return [self._tensor(output, text, ids, summary) for output in self.outputs]

    def _tensor(self, output: WantedOutput, text: str, ids: Sequence[int], summary: Summary | None) -> Tensor:
        kind = output.kind
        values: Values
        if kind == IDS_OUTPUT:
            return Tensor(output.name, UINT32, (1, len(ids)), ids)
        if kind == TEXT_OUTPUT:
            values = (text,)
        elif kind == "finish_reason":
            values = ("" if summary is None else summary.finish_reason.value,)
        elif kind == "num_input_tokens":
            values = (self.prompt_tokens if summary is None else summary.prompt_tokens,)
        else:
            values = (len(ids),)
        return Tensor(output.name, OUTPUTS[kind], (1,) * self.rank, values)


@dataclass(frozen=True, slots=True)
class Wanted:
    """An entry of the request's `outputs`, its fields not looked at yet."""

    name: object
    parameters: Mapping[str, Any]


def read_inference(
    *,
    request_id: str,
    client_id: str | None,
    model: str,
    tensors: Sequence[Tensor],
    wanted: Sequence[Wanted],
    parameters: Mapping[str, Any],
    document: Document,
    settings: DialectSettings,
) -> Inference:
    """Reads an inference request out of its tensors.

    Args:
        parameters: of the request as a whole.
        document: the body, for messages.

    Raises:
        ValidationError: a tensor, a parameter or an output is wrong.
    """
    inputs = _by_name(tensors)
    prompt_tensor = _prompt_tensor(inputs)
    values, names = _parameters(inputs, prompt_tensor, parameters, document, settings)
    flags = {name: single(inputs[name], BOOL) for name in FLAGS if name in inputs}
    for name in ("stream", "exclude_input_in_output"):
        if name in flags:
            values[name] = flags[name]
            names[name] = name
    prompt: Prompt
    if prompt_tensor.name == TEXT_INPUT.name:
        prompt = TextPrompt((TextPart(single(prompt_tensor, BYTES)),), TEXT_INPUT.name)
    else:
        prompt = TokenPrompt(tuple(prompt_tensor.values), prompt_tensor.name)  # type: ignore[arg-type]
    request = make_request(request_id, client_id, model, prompt, values, names)
    if request.return_full_text and isinstance(prompt, TokenPrompt):
        raise ValidationError(names["exclude_input_in_output"], "must be true with a prompt of token ids, got false")
    asked = [kind for kind in EXTRA_OUTPUTS if flags.get(f"return_{kind}")]
    return Inference(
        request=request,
        id=request_id if client_id is None else client_id,
        model=model,
        stream=values.get("stream", False),
        outputs=_outputs(wanted, asked, isinstance(prompt, TokenPrompt), parameters),
        prefix=prompt.text if request.return_full_text and isinstance(prompt, TextPrompt) else "",
        rank=len(prompt_tensor.shape),
    )


def tensor_head(place: str, name: object, datatype: object, shape: object, parameters: Mapping[str, Any]) -> TensorHead:
    """What an input says of itself; a wrong name is found before a wrong datatype. Raises ValidationError."""
    if isinstance(name, str) and name and name not in INPUTS and datatype != UINT32:
        raise _unknown_name(place, name)
    return TensorHead.read(place, name, datatype, shape, parameters)


def _unknown_name(place: str, name: str) -> ValidationError:
    hint = ""
    if name in PARAMETERS:
        hint = f", a parameter: its place is {SAMPLING_INPUT} or an object `parameters`"
    problem = f"must be one of {', '.join(INPUTS)}, or any other of a lone UINT32 prompt, got {show(name)}{hint}"
    return ValidationError(f"{place}.name", problem)


def _by_name(tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    inputs: dict[str, Tensor] = {}
    for tensor in tensors:
        if tensor.name in inputs:
            raise ValidationError(f"{tensor.place}.name", f"must be unique, got {show(tensor.name)} twice")
        inputs[tensor.name] = tensor
    return inputs


def _prompt_tensor(inputs: Mapping[str, Tensor]) -> Tensor:
    """The one input that holds the prompt: `text_input`, or ids under `input0` or any name that means nothing else."""
    prompt: Tensor | None = None
    named = TEXT_INPUT.name in inputs or IDS_INPUT in inputs
    for name, tensor in inputs.items():
        if name == SAMPLING_INPUT or name in FLAGS:
            continue
        if name not in INPUTS and (named or prompt is not None):
            raise _unknown_name(tensor.place, name)
        if name != TEXT_INPUT.name and tensor.datatype != UINT32:
            problem = f"must be UINT32 for a prompt of token ids ({IDS_INPUT}), got {tensor.datatype}"
            raise ValidationError(f"{tensor.place}.datatype", problem)
        if prompt is not None:
            raise ValidationError(
                f"{tensor.place}.name", f"must be no second prompt beside {show(prompt.name)}, got {show(name)}"
            )
        prompt = tensor
    if prompt is None:
        raise ValidationError("inputs", f"must hold {TEXT_INPUT.name} (BYTES) or {IDS_INPUT} (UINT32), got neither")
    return prompt


def _parameters(
    inputs: Mapping[str, Tensor],
    prompt: Tensor,
    parameters: Mapping[str, Any],
    document: Document,
    settings: DialectSettings,
) -> tuple[dict[str, Any], dict[str, str]]:
    """(checked values, their wire names). The tensor wins over the prompt's parameters, those over the request's."""
    sources = [(document, "parameters.", parameters), (document, f"{prompt.place}.parameters.", prompt.parameters)]
    if SAMPLING_INPUT in inputs:
        text: str = single(inputs[SAMPLING_INPUT], BYTES)
        try:
            inner = parse_object(text.encode(), settings.max_json_depth)
        except ValidationError as error:
            raise ValidationError(SAMPLING_INPUT, f"must be the text of a JSON object: {error.problem}") from None
        sources.append((inner, f"{SAMPLING_INPUT}.", inner.root))
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    for source, prefix, given in sources:
        values |= PARAMETERS.read(source, given, prefix, COLUMN, settings)
        source.close()
        names |= {name: prefix + name for name in given if name in PARAMETERS}
    return values, {name: f"parameters.{name}" for name in PARAMETERS.names} | names


def _outputs(
    wanted: Sequence[Wanted], asked: Sequence[str], of_ids: bool, parameters: Mapping[str, Any]
) -> tuple[WantedOutput, ...]:
    """The outputs in the client's order, then those that a `return_…` input asks for."""
    all_binary = _flag(parameters, "binary_data_output", "parameters.", False)
    found: dict[str, WantedOutput] = {}
    for at, output in enumerate(wanted):
        place = f"outputs[{at}]"
        name = output.name
        if not isinstance(name, str) or len(name) > MAX_NAME:
            given = show(name) if not isinstance(name, str) else f"{len(name)} characters"
            raise ValidationError(f"{place}.name", f"must be a string of at most {MAX_NAME} characters, got {given}")
        kind = name
        if name not in OUTPUTS and of_ids and len(wanted) == 1:
            kind, name = IDS_OUTPUT, name or IDS_OUTPUT  # the only one may have any name: it is the ids
        if kind not in OUTPUTS:
            raise ValidationError(f"{place}.name", f"must be one of {', '.join(OUTPUTS)}, got {show(name)}")
        if kind in found:
            raise ValidationError(f"{place}.name", f"must be unique, got {show(name)} twice")
        for key in output.parameters:
            if key == "classification" or key.startswith("shared_memory_"):
                raise ValidationError(f"{place}.parameters.{key}", "is not accepted: it is not supported")
        found[kind] = WantedOutput(
            kind, name, _flag(output.parameters, "binary_data", f"{place}.parameters.", all_binary)
        )
    if not found:
        kind = IDS_OUTPUT if of_ids else TEXT_OUTPUT
        found[kind] = WantedOutput(kind, kind, all_binary)
    for kind in asked:
        found.setdefault(kind, WantedOutput(kind, kind, all_binary))
    return tuple(found.values())


def _flag(parameters: Mapping[str, Any], name: str, prefix: str, absent: bool) -> bool:
    value = parameters.get(name)
    if value is None:
        return absent
    if value is not True and value is not False:
        raise ValidationError(prefix + name, f"must be true or false, got {show(value)}")
    return value


# --- HTTP -----------------------------------------------------------------------------------------------------------


def decode(wire: WireRequest, settings: DialectSettings) -> Call:
    """Decodes a body: JSON alone, or JSON and then the binary data of its inputs in order.

    Raises:
        NotFoundError: the path names an unknown model or version; found before the body is looked at.
        ValidationError: the body is wrong.
    """
    model = check_model(settings.model_name, **wire.path_params)
    head, binary = _split(wire)
    document = parse_object(head, settings.max_json_depth)
    client_id = read_field(document, ID, COLUMN, settings)
    parameters = object_field(document, "parameters")
    note_unknown(
        wire.request_id,
        ("", document.root, _ROOT_FIELDS.__contains__),
        ("parameters.", parameters, lambda name: name in PARAMETERS or name in KNOWN_PARAMETERS),
    )
    inference = read_inference(
        request_id=wire.request_id,
        client_id=client_id,
        model=model,
        tensors=list(_tensors(document, binary)),
        wanted=[
            Wanted(entry.get("name"), _inner_parameters(entry, place)) for place, entry in _list(document, "outputs")
        ],
        parameters=parameters,
        document=document,
        settings=settings,
    )
    return Call(inference.request, False, InferEncoder(inference))


def _split(wire: WireRequest) -> tuple[bytes, memoryview]:
    """(JSON, binary data), cut where the header says."""
    body = wire.body
    written = wire.headers.get(BINARY_LENGTH)
    if written is None:
        return body, memoryview(b"")
    length = int(written) if written.isascii() and written.isdecimal() and len(written) <= 12 else -1
    if not 0 < length <= len(body):
        raise ValidationError(
            "Inference-Header-Content-Length",
            f"must be an integer in 1..{len(body)}, the body's length, got {show(written)}",
        )
    return body[:length], memoryview(body)[length:]


def _list(document: Document, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(place, object) for each entry of a list at the root."""
    entries = document.root.get(name)
    if entries is None:
        return
    if not isinstance(entries, list) or len(entries) > MAX_TENSORS:
        raise ValidationError(name, f"must be an array of at most {MAX_TENSORS} objects, got {show(entries)}")
    for at, entry in enumerate(entries):
        place = f"{name}[{at}]"
        if not isinstance(entry, dict):
            raise ValidationError(place, f"must be an object, got {show(entry)}")
        yield place, entry


def _inner_parameters(entry: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    parameters = entry.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise ValidationError(f"{place}.parameters", f"must be an object, got {show(parameters)}")
    return parameters


def _tensors(document: Document, binary: memoryview) -> Iterator[Tensor]:
    rest = binary
    for place, entry in _list(document, "inputs"):
        parameters = _inner_parameters(entry, place)
        head = tensor_head(place, entry.get("name"), entry.get("datatype"), entry.get("shape"), parameters)
        size = parameters.get("binary_data_size")
        if size is None:
            yield Tensor.of_json(head, entry.get("data"))
            continue
        if entry.get("data") is not None:
            raise ValidationError(f"{place}.data", "must be absent beside binary_data_size")
        if type(size) is not int or not 0 <= size <= len(rest):
            problem = f"must be an integer in 0..{len(rest)}, the bytes that are left of the body, got {show(size)}"
            raise ValidationError(f"{place}.parameters.binary_data_size", problem)
        yield Tensor.of_binary(head, rest[:size])
        rest = rest[size:]
    if len(rest):
        raise ValidationError("inputs", f"must use all binary data of the body, {len(rest)} bytes are left over")


@dataclass(frozen=True, slots=True)
class InferEncoder:
    """One answer with all tensors, as JSON or with binary data behind it. Over HTTP an inference never streams."""

    inference: Inference
    media_type: str = "application/json"

    def stream_headers(self) -> tuple[tuple[str, str], ...]:
        return ()

    def event(self, event: TextEvent) -> bytes:
        return b""

    def end(self) -> bytes:
        return b""

    def answer(self, answer: Answer) -> Reply:
        outputs = []
        binary: list[bytes] = []
        for wanted, tensor in zip(self.inference.outputs, self.inference.whole(answer), strict=True):
            output: dict[str, Any] = {"name": tensor.name, "shape": tensor.shape, "datatype": tensor.datatype}
            if wanted.binary:
                binary.append(tensor.binary())
                output["parameters"] = {"binary_data_size": len(binary[-1])}
            else:
                output["data"] = tensor.values
            outputs.append(output)
        body = orjson.dumps(
            {
                "id": self.inference.id,
                "model_name": self.inference.model,
                "model_version": VERSION,
                "outputs": outputs,
            }
        )
        if not binary:
            return Reply(200, body)
        headers = ((BINARY_LENGTH, str(len(body))),)
        return Reply(200, b"".join((body, *binary)), headers, "application/octet-stream")


def _render_error(error: RequestError) -> Reply:
    return _errors.reply(error, STATUSES)


DIALECT = Dialect(
    name="kserve",
    title="KServe v2 / Triton, inference",
    prefix="/triton",  # one server's protocol: its clients take one base path for all of it
    routes=tuple(
        Route(
            method="POST",
            path=f"/v2/models/{{model}}{version}/infer",
            decode=decode,
            describe=partial(describe, bool(version), STATUSES),
        )
        for version in ("", "/versions/{version}")
    ),
    render_error=_render_error,
    owns=lambda path: False,  # Triton's dialect owns the paths, with the same shape of error
)
