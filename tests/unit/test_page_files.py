"""The page's files: whole, self-contained, cached, open without a key. Their work: test_page_in_chromium.py."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest
from server_fakes import FakeClient, FakeTokenizer, fake_config
from test_server_api import Server

from paceline.server.access.keys import ApiKeys
from paceline.server.access.options import AccessOptions
from paceline.server.app import create_app

FILES = {
    str(entry.name): entry.read_text() for entry in resources.files("paceline.server.page").joinpath("files").iterdir()
}
SCRIPTS = [name for name in FILES if name.endswith(".js")]


def test_the_page_and_its_files_are_given_with_their_kinds_and_rules() -> None:
    server = Server()
    for path in ["/", *(f"/static/{name}" for name in FILES if name != "index.html")]:
        got = server.get(path)
        assert got.status_code == 200, path
        assert got.text == FILES[path.rpartition("/")[2] or "index.html"]
        assert got.headers["content-type"].split(";")[0] in (
            *("text/html", "text/css", "text/javascript", "image/svg+xml"),
        )
        assert "default-src 'self'" in got.headers["content-security-policy"]
        assert "unsafe" not in got.headers["content-security-policy"]
        assert got.headers["x-content-type-options"] == "nosniff"
        assert got.headers["cache-control"] == "no-cache"
        head = server.request("HEAD", path)
        assert (head.status_code, head.headers["etag"]) == (200, got.headers["etag"])
        for known in (got.headers["etag"], f'"other", W/{got.headers["etag"]}', "*"):
            again = server.request("GET", path, headers={"If-None-Match": known})
            assert (again.status_code, again.content) == (304, b"")
        assert server.request("GET", path, headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("name", ["nothing.js", "index.html", "..%2Frouter.py", "../router.py", "__init__.py"])
def test_no_other_file_can_be_had(name: str) -> None:
    got = Server().get(f"/static/{name}")
    assert (got.status_code, got.json()["error"]["code"]) == (404, "not_found")


def test_the_files_need_no_key_and_everything_that_they_ask_does() -> None:
    server = Server()
    keys = ApiKeys.load(None, "a-key-of-a-tester", "PACELINE_API_KEYS")
    server.app = create_app(FakeClient(), ["fake"], FakeTokenizer(), fake_config(), access=AccessOptions(api_keys=keys))
    assert server.get("/").status_code == server.get("/static/main.js").status_code == 200
    for path in ("/v1/paceline/status", "/v1/models", "/metrics", "/openapi.json", "/static"):
        assert server.get(path).status_code == 401, path
    assert server.chat().status_code == 401


def test_the_page_is_no_part_of_the_api() -> None:
    assert not {"/", "/static/{name}"} & Server().get("/openapi.json").json()["paths"].keys()


def test_whatever_a_file_names_is_there_and_nothing_is_elsewhere() -> None:
    for source in re.findall(r'(?:src|href)="(?!#)([^"]+)"', FILES["index.html"]):
        assert source.removeprefix("static/") in FILES or source in ("openapi.json", "metrics", "v1/paceline/status")
    for name in SCRIPTS:
        for imported in re.findall(r'from "\./([^"]+)"', FILES[name]):
            assert imported in FILES, (name, imported)
    for name, text in FILES.items():
        assert not re.findall(r"(?:https?:)?//[\w.]+\.\w+/", text.replace("http://www.w3.org/2000/svg", "")), name
        assert "@import" not in text
        assert "url(" not in text


@pytest.mark.parametrize("name", SCRIPTS)
def test_text_never_becomes_markup(name: str) -> None:
    for dangerous in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert dangerous not in FILES[name]


def test_ids_that_scripts_look_up_stand_in_the_page() -> None:
    ids = set(re.findall(r'\bid="([^"]+)"', FILES["index.html"]))
    for name in SCRIPTS:
        asked = re.findall(r'(?:getElementById|\btext)\("([^"]+)"', FILES[name])
        assert set(asked) <= ids, (name, set(asked) - ids)


def test_the_files_are_in_the_wheel() -> None:
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    assert '"server/page/files/*"' in project.read_text()
