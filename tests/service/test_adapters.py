"""Adapters as requests and operators name them, over the scripted engine: names, refusals, versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from byte_model import NAME, House, house, request, script

from interlingua.contract.errors import InterlinguaError, NotFoundError, UnavailableError, ValidationError
from interlingua.contract.events import FailedEvent
from interlingua.contract.request import Adapter, GenerationRequest, PreparedRequest
from interlingua.engine.echo import Script
from interlingua.engine.peft import CONFIG_FILE
from interlingua.service.adapters import is_name, listing

CONFIG = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / CONFIG_FILE).write_text(json.dumps(CONFIG))
    return str(tmp_path)


def recording(seen: list[PreparedRequest]) -> House:
    def say(prepared: PreparedRequest) -> Script:
        seen.append(prepared)
        return script("ok")

    return house(say)


async def refused(home: House, received: GenerationRequest) -> InterlinguaError:
    (event,) = [event async for batch in home.service.generate(received) for event in batch]
    assert isinstance(event, FailedEvent)
    await home.emptied()
    return event.error


async def test_requests_choose_by_adapter_id_or_model(folder: str) -> None:
    seen: list[PreparedRequest] = []
    home = recording(seen)
    one = await home.service.load_adapter("one", folder)
    two = await home.service.load_adapter("owner/two", folder)
    assert home.service.adapters == (one, two) == (Adapter("one", 1, folder, 8), Adapter("owner/two", 2, folder, 8))
    for given in (
        {"adapter_id": "one"},
        {"model": "owner/two"},
        {"model": NAME},
        {"adapter_id": "one", "model": NAME},
        {"adapter_id": "one", "model": "owner/two"},
        {},
    ):
        await home.service.answer(request(**given))
    assert [prepared.adapter for prepared in seen] == [one, two, None, one, one, None]
    await home.emptied()


async def test_unknown_names_are_refused_and_say_what_is_loaded(folder: str) -> None:
    home = house()
    error = await refused(home, request(adapter_id="no-such"))
    assert isinstance(error, ValidationError) and error.field == "adapter_id"
    assert error.problem == "must name a loaded adapter (none is loaded), got 'no-such'"
    await home.service.load_adapter("one", folder)
    names = (("adapter_id", "parameters.adapter_id"),)
    error = await refused(home, request(adapter_id="../../etc", field_names=names))
    assert error.message == "`parameters.adapter_id` must name a loaded adapter (one), got '../../etc'"
    error = await refused(home, request(model="gpt-4"))
    assert isinstance(error, NotFoundError)
    assert error.message == 'model "gpt-4" is not served here; "bytes" and the adapters one are'


async def test_a_name_loaded_again_is_a_new_version_and_unloaded_is_unknown(folder: str) -> None:
    seen: list[PreparedRequest] = []
    home = recording(seen)
    await home.service.load_adapter("one", folder)
    again = await home.service.load_adapter("one", folder)
    assert again.version == 2 and home.service.adapters == (again,)
    await home.service.answer(request(adapter_id="one"))
    assert seen[0].adapter == again
    await home.service.unload_adapter("one")
    assert home.service.adapters == ()
    assert isinstance(await refused(home, request(adapter_id="one")), ValidationError)
    with pytest.raises(ValidationError, match="`lora_name` must name a loaded adapter"):
        await home.service.unload_adapter("one")


@pytest.mark.parametrize(
    ("name", "path", "field"),
    [
        ("None", ".", "lora_name"),
        ("dummy", ".", "lora_name"),
        ("tgi", ".", "lora_name"),
        ("", ".", "lora_name"),
        (NAME, ".", "lora_name"),
        ("../up", ".", "lora_name"),
        ("/etc/passwd", ".", "lora_name"),
        ("a//b", ".", "lora_name"),
        ("a b", ".", "lora_name"),
        ("a\x00", ".", "lora_name"),
        ("a" * 257, ".", "lora_name"),
        ("one", "", "lora_path"),
        ("one", "/srv/../etc", "lora_path"),
        ("one", "/a\x00b", "lora_path"),
        ("one", "/a\nb", "lora_path"),
        ("one", "/" + "a" * 4096, "lora_path"),
        ("one", "/no/such/folder", "lora_path"),
    ],
)
async def test_bad_loads_are_refused(name: str, path: str, field: str) -> None:
    home = house()
    with pytest.raises(ValidationError) as caught:
        await home.service.load_adapter(name, path)
    assert caught.value.field == field and home.service.adapters == ()


async def test_no_model_no_adapters(folder: str) -> None:
    home = house(loaded=False)
    assert home.service.adapters == ()
    with pytest.raises(UnavailableError):
        await home.service.load_adapter("one", folder)
    with pytest.raises(UnavailableError):
        await home.service.unload_adapter("one")


def test_names() -> None:
    assert all(map(is_name, ("a", "A-1_x.y", "owner/name", "none", "a.b", "a..b", "x" * 256)))
    assert not any(map(is_name, ("", "None", ".", "..", "a/..", "../a", "/a", "a/", "é", "a,b", "a=b")))


def test_long_lists_of_names_are_cut() -> None:
    many = {f"a{number:02}": Adapter(f"a{number:02}", 1, "", 8) for number in range(20)}
    assert listing(many).endswith("a15 and 4 more")
