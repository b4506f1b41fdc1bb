"""Makes tests/data/schemas/draft2020-12.json.xz: the official JSON-Schema-Test-Suite, draft 2020-12, in one file.

    pip download --no-deps --no-binary :all: jsonschema==4.26.0
    python scripts/golden/make_schemas.py jsonschema-4.26.0.tar.gz

The sdist of PyPI's jsonschema carries the suite under `json/`, MIT licensed by Julian Berman; its licence is copied
beside the file. The file is a JSON object: name of the suite's file -> its list of groups, each with `description`,
`schema` and `tests` (`description`, `data`, `valid`), as they are there.
"""

from __future__ import annotations

import json
import lzma
import sys
import tarfile
from pathlib import Path

DATA = Path(__file__).parents[2] / "tests" / "data" / "schemas"


def main(sdist: Path) -> None:
    suite: dict[str, object] = {}
    with tarfile.open(sdist) as archive:
        for name in sorted(archive.getnames()):
            _, _, path = name.partition("/")
            file = archive.extractfile(name) if path.endswith((".json", "json/LICENSE")) else None
            if file is None:
                continue
            if path == "json/LICENSE":
                DATA.mkdir(parents=True, exist_ok=True)
                (DATA / "LICENSE").write_bytes(file.read())
            elif path.startswith("json/tests/draft2020-12/"):
                suite[path.removeprefix("json/tests/draft2020-12/").removesuffix(".json")] = json.load(file)
    text = json.dumps(suite, ensure_ascii=True, separators=(",", ":"))
    (DATA / "draft2020-12.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
