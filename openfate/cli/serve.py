"""`openfate serve`: a bundle behind HTTP, which learns new features while it serves."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from openfate.cli.command import Answer
from openfate.cli.flags import Trusted
from openfate.cli.later_rows import read_training
from openfate.errors import InputError, OpenWorldWarning


def serve(
    bundle: Path | None = None,
    *,
    state: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    observe_requests: bool = False,
    tokens: Path | None = None,
    keep_days: float = 30.0,
    new_features: int = 10_000,
    replay: bool = False,
    train: Path | None = None,
    target: str | None = None,
    demo: bool = False,
    trusted: Trusted = False,
) -> Answer:
    """Serve a bundle over HTTP; what it observes is durable and counts at once.

    Parameters
    ----------
    bundle
        A folder that `openfate fit` wrote.
    state
        Where what is observed is kept: a folder (by default BUNDLE.state beside the bundle), or
        postgresql://... for several processes.
    host
        Where to listen; any but this machine itself needs --tokens.
    port
        0 for any that is free.
    observe_requests
        Rows that are predicted are observed too, so that labels can follow by their ids.
    tokens
        A JSON file of clients: {"shop": {"token": "...", "scopes": ["predict", "observe"]}}.
    keep_days
        How long rows are kept for labels to find them.
    new_features
        How many a client may bring within a minute.
    replay
        A state of another bundle is taken over, its log replayed on this one.
    train
        The rows that BUNDLE was fitted on: the model is trained again on them and on the labels
        that come, as one more way to predict.
    target
        Of those rows, where the bundle does not know it: a column or an SQL expression.
    demo
        A synthetic shop whose new campaigns appear while one watches.
    """
    service_parts = _import_service()
    if demo == (bundle is not None):
        raise InputError("give a BUNDLE, or --demo for a synthetic shop.")
    if train is not None and demo:
        raise InputError("--train: the demo has rows of its own; leave it out.")
    if target is not None and train is None:
        raise InputError("--target: it is of training rows; give them with --train.")
    if not 0 <= port < 65_536:
        raise InputError(f"--port {port}: choose one from 0 to 65535.")
    if new_features < 0:
        raise InputError(f"--new-features {new_features}: give 0 or more.")
    if tokens is None and not _is_local(host):
        raise InputError(f"--host {host}: others can reach it; give --tokens, or 127.0.0.1.")
    # WHY: they are worded for who calls Python.  What clients leave out or bring is told by answers
    # and metrics, and would be told again at every replay.
    warnings.simplefilter("ignore", OpenWorldWarning)
    with tempfile.TemporaryDirectory() as folder:
        shop = None
        if bundle is None:
            print("openfate: training on the visits of a synthetic shop ...", file=sys.stderr)
            shop, bundle = service_parts["Shop"](), Path(folder) / "shop"
            shop.fit(bundle)
        url = state if state is not None else f"{bundle}.state"
        read = None if train is None else partial(read_training, path=train, target=target)
        live = service_parts["LiveBank"](
            *(bundle, url), keep_days=keep_days, replay=replay, train=read, trusted=trusted
        )
        for what in live.log.damage.found:
            print(f"openfate: the log was damaged and repaired: {what}", file=sys.stderr)
        clients = service_parts["Clients"]
        service = service_parts["Service"](
            live,
            clients=clients() if tokens is None else clients.from_file(tokens),
            limits=service_parts["Limits"](new_features=new_features),
            observe_requests=observe_requests or demo,
        )
        _run(service, service_parts, host, port, bundle, shop)
    return {"position": live.position, "trouble": live.trouble}, _describe(live)


def _import_service() -> dict[str, Any]:
    try:
        import uvicorn

        from openfate import serving
    except ImportError as error:
        raise InputError(f"serving needs {error.name}: pip install 'openfate[serve]'.") from None
    names = ("Clients", "Limits", "LiveBank", "Service", "Shop", "Visitors", "make_app")
    return {"uvicorn": uvicorn, **{name: getattr(serving, name) for name in names}}


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _run(
    service: Any, parts: dict[str, Any], host: str, port: int, bundle: Path, shop: Any
) -> None:
    """Serve until a signal says to stop; SIGHUP takes the bundle in anew."""
    # WHY: a thread that learns would keep a request waiting for 5 ms at a time.
    sys.setswitchinterval(0.0005)
    level = logging.WARNING if shop is not None else logging.INFO
    logging.basicConfig(level=level, format="%(message)s", stream=sys.stderr)
    visitors: list[Any] = []

    def take_in() -> None:
        try:
            service.live.take_bundle(bundle)
        except Exception as error:
            logging.getLogger("openfate.serving").error("SIGHUP: %s", error)

    def stop() -> None:
        server.should_exit = True
        service.stopping.set()

    def start() -> None:
        loop = asyncio.get_running_loop()
        # WHY in a thread: requests go on while a bundle, and its rows, are read.
        loop.add_signal_handler(signal.SIGHUP, loop.run_in_executor, None, take_in)
        gc.collect()
        gc.freeze()  # WHY: what is loaded by now stays; collecting it again takes 100 ms

    config = parts["uvicorn"].Config(
        parts["make_app"](service, on_start=start),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    server = parts["uvicorn"].Server(config)
    # WHY: uvicorn would end the process by the signal itself, before this function returns
    server.capture_signals = contextlib.nullcontext

    async def run() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():
            await asyncio.sleep(0.02)
        if server.started:
            at = server.servers[0].sockets[0].getsockname()[1]
            print(f"openfate: http://{host}:{at}/", file=sys.stderr, flush=True)
            if shop is not None:
                visitors.append(parts["Visitors"](shop, f"http://127.0.0.1:{at}"))
                visitors[0].start()
        await serving

    try:
        asyncio.run(run())
    except SystemExit:  # uvicorn's way to say that it could not start
        pass
    finally:
        for thread in visitors:
            thread.stopping.set()
        service.live.close()
    if not server.started:
        raise InputError(f"--port {port}: cannot be listened on; choose another.")


def _describe(live: Any) -> Iterator[str]:
    yield f"Stopped at position {live.position} of the log."
