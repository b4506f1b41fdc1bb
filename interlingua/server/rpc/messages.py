"""Between protobuf messages and the protocol's plain values: tensors, parameters, documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from google.protobuf.json_format import ParseDict

from interlingua.contract.dialect import DialectSettings
from interlingua.contract.errors import ValidationError
from interlingua.dialects._bounds import MAX_TENSORS
from interlingua.dialects._fields import read_field
from interlingua.dialects._json import Document
from interlingua.dialects._tensors import BOOL, BYTES, Tensor, TensorHead
from interlingua.dialects._triton_table import COLUMN, ID
from interlingua.dialects.kserve import Inference, Wanted, read_inference, tensor_head
from interlingua.dialects.triton import VERSION
from interlingua.server.rpc import kserve_pb2 as pb


def to_inference(request: pb.ModelInferRequest, request_id: str, model: str, settings: DialectSettings) -> Inference:
    """Raises ValidationError."""
    for name, entries in (("inputs", request.inputs), ("outputs", request.outputs)):
        if len(entries) > MAX_TENSORS:
            raise ValidationError(name, f"must be at most {MAX_TENSORS}, got {len(entries)}")
    # Messages about values find no JSON to quote from, and show them as Python has them.
    document = Document({"id": request.id or None}, b"")
    client_id = read_field(document, ID, COLUMN, settings)
    return read_inference(
        request_id=request_id,
        client_id=client_id,
        model=model,
        tensors=list(_tensors(request)),
        wanted=[Wanted(output.name, _parameters(output.parameters)) for output in request.outputs],
        parameters=_parameters(request.parameters),
        document=document,
        settings=settings,
    )


def to_response(inference: Inference, tensors: Iterable[Tensor], final: bool) -> pb.ModelInferResponse:
    """A response with all data raw, as Triton answers. `final`: no other follows for this request."""
    response = empty_response(inference.id, inference.model, final)
    for tensor in tensors:
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.append(tensor.binary())
    return response


def empty_response(request_id: str, model: str, final: bool) -> pb.ModelInferResponse:
    response = pb.ModelInferResponse(id=request_id, model_name=model, model_version=VERSION)
    response.parameters["triton_final_response"].bool_param = final
    return response


def metadata(document: dict[str, Any]) -> pb.ModelMetadataResponse:
    return ParseDict(document, pb.ModelMetadataResponse())


def config(document: dict[str, Any]) -> pb.ModelConfigResponse:
    return ParseDict({"config": document}, pb.ModelConfigResponse())


def _parameters(given: Mapping[str, pb.InferParameter]) -> dict[str, Any]:
    """Plain values by name; a parameter with no value is absent."""
    values: dict[str, Any] = {}
    for name, parameter in given.items():
        choice = parameter.WhichOneof("parameter_choice")
        values[name] = None if choice is None else getattr(parameter, choice)
    return values


def _tensors(request: pb.ModelInferRequest) -> Iterator[Tensor]:
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise ValidationError(
            "raw_input_contents", f"must be as many as the inputs, {len(request.inputs)}, got {len(raw)}"
        )
    for at, tensor in enumerate(request.inputs):
        place = f"inputs[{at}]"
        if len(tensor.shape) > 2:  # before millions of them are read
            raise ValidationError(f"{place}.shape", f"must be one or two integers, got {len(tensor.shape)}")
        head = tensor_head(place, tensor.name, tensor.datatype, tuple(tensor.shape), _parameters(tensor.parameters))
        if not raw:
            yield Tensor.of_json(head, _contents(head, tensor.contents))
            continue
        if tensor.HasField("contents"):
            raise ValidationError(f"{place}.contents", "must be absent beside raw_input_contents")
        yield Tensor.of_binary(head, raw[at])


def _contents(head: TensorHead, contents: pb.InferTensorContents) -> list[Any]:
    given = {BOOL: len(contents.bool_contents), BYTES: len(contents.bytes_contents)}
    if (count := given.get(head.datatype, len(contents.uint_contents))) != head.elements:  # likewise
        problem = f"must hold as many elements as its shape, {head.elements}, got {count}"
        raise ValidationError(f"{head.place}.data", problem)
    if head.datatype == BOOL:
        return list(contents.bool_contents)
    if head.datatype != BYTES:
        return list(contents.uint_contents)
    texts: list[str] = []
    for at, value in enumerate(contents.bytes_contents):
        try:
            texts.append(value.decode())
        except UnicodeDecodeError as problem:
            raise ValidationError(
                f"{head.place}.contents[{at}]", f"must be valid UTF-8, got an invalid byte at {problem.start}"
            ) from None
    return texts
