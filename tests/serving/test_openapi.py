"""The service against its own OpenAPI description, by schemathesis: `make fuzz-service`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import urllib.request

import pytest

from serving.test_crash import start

SECONDS = 300


@pytest.mark.slow
def test_nothing_that_the_description_allows_or_forbids_is_an_error_of_ours(bundle, tmp_path):
    program = os.environ.get("OPENFATE_SCHEMATHESIS") or shutil.which("schemathesis")
    if program is None:
        pytest.skip("no schemathesis: `make fuzz-service` installs it beside")
    process, url = start(bundle, str(tmp_path / "state"))
    logged: list[str] = []  # WHY a thread: a pipe that nobody reads stops who writes to it
    reading = threading.Thread(target=lambda: logged.extend(process.stderr))
    reading.start()
    command = [program, "run", f"{url}/openapi.json", "--max-time", str(SECONDS)]
    command += ["--checks", "not_a_server_error,status_code_conformance", "--no-color"]
    command += ["--exclude-path", "/events", "--request-timeout", "30"]  # a stream has no end
    try:
        done = subprocess.run(
            [*command, "--continue-on-failure", "--suppress-health-check", "all"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            metrics = answer.read().decode()
        with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
            assert json.loads(answer.read())["status"] == "ok"
    finally:
        process.terminate()
        process.wait(60)
        reading.join()
        process.stdout.close()
        process.stderr.close()
    print(done.stdout[-3000:])
    assert done.returncode == 0, done.stdout[-20_000:]
    text = "".join(logged)
    assert (at := text.find("Traceback")) < 0, text[max(at - 1000, 0) : at + 5000]
    asked = [line for line in metrics.splitlines() if line.startswith("openfate_requests_total")]
    assert len(asked) > 20  # most statuses of most paths
    assert not [line for line in asked if 'status="5' in line]
