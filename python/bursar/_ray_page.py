"""The cards of a cluster as a page, and the server that has it."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ._ledger import DeviceLedger
from ._ray_cards import size_text
from ._ray_state import ClusterState, NodeState, check_connected, state
from .errors import InvalidValue, NoCluster

_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; background: #fff; color: #222 }
h2 { font-size: 1.1em; margin: 1.5em 0 .3em } .bar { background: #ddd; height: 1em; border-radius: 3px; overflow: hidden; display: flex }
.bar i { display: block; height: 100% } .held { background: #2a6db0 } .aside { background: #8db8e2 } .other { background: #b07a2a }
table { border-collapse: collapse; margin: .3em 0 } td, th { text-align: left; padding: .1em 1.2em .1em 0; font-weight: normal }
th, .faint { color: #666 } .bad { color: #a00 }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd } .bar { background: #333 } th, .faint { color: #999 } }
"""


def page(found: ClusterState, *, refresh: float | None = None) -> str:
    """Returns a page of its own that shows the cards, shares, holders and refusals of a cluster."""
    again = f'<meta http-equiv="refresh" content="{refresh:g}">' if refresh else ""
    whole = f"{size_text(found.limit - found.left)} of {size_text(found.limit)} taken on {len(found.cards)} cards of {len(found.nodes)} nodes"
    nodes = "".join(_node(node, found) for node in found.nodes) or "<p>No node of this cluster has cards that Ray knows of.</p>"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{again}<title>Bursar: cluster</title><style>{_STYLE}</style></head>'
        f"<body><h1>Cluster</h1><p>{whole}</p>{nodes}{_refusals(found)}</body></html>"
    )


def _node(node: NodeState, found: ClusterState) -> str:
    name = f"<h2>Node {escape(node.address)} <span class=faint>{escape(node.node[:12])}</span></h2>"
    if node.error is not None:
        return f"{name}<p class=bad>Its cards cannot be read: {escape(node.error)}</p>"
    unreadable = "".join(
        f"<p class=bad>The ledger of {escape(each.uuid)} cannot be read: {escape(each.error)}</p>" for each in node.unreadable
    )
    return name + "".join(_card(card, found) for card in node.cards) + unreadable


def _card(card: DeviceLedger, found: ClusterState) -> str:
    whole = max(card.limit, 1)
    kept = found.kept.get(card.uuid, 0)
    parts = (("held", card.held), ("aside", card.set_aside + kept), ("other", card.unmanaged))
    bar = "".join(f'<i class={name} style="width:{100 * size / whole:.2f}%"></i>' for name, size in parts)
    rows = "".join(
        f"<tr><td>{escape(each.name)}<td>{each.pid}<td>{escape(', '.join(each.labels))}"
        f"<td>{size_text(each.held)}<td>{size_text(each.set_aside)}"
        for each in card.processes
        if each.held or each.set_aside
    )
    table = f"<table><tr><th>process<th>pid<th>label<th>held<th>set aside{rows}</table>" if rows else ""
    told = f"{size_text(found.left_on(card))} left of {size_text(card.limit)}, {size_text(card.unmanaged)} unmanaged"
    told += f", {size_text(kept)} kept for groups" if kept else ""
    title = f"gpu{card.device} {escape(card.name)} <span class=faint>{escape(card.uuid)}</span>"
    return f"<p>{title}: {told}</p><div class=bar>{bar}</div>{table}"


def _refusals(found: ClusterState) -> str:
    rows = "".join(
        f"<tr><td>{refusal.when:%Y-%m-%d %H:%M:%S}<td>{escape(node.address)}<td>{escape(card.uuid)}<td>{escape(refusal.name)} ({refusal.pid})"
        f"<td>{size_text(refusal.requested)}<td>{size_text(refusal.available)}<td>{escape(refusal.reason)}"
        for node, card, refusal in found.refusals[:32]
    )
    head = "<tr><th>when (UTC)<th>node<th>card<th>who<th>asked for<th>left<th>reason"
    return f"<h2>Last refusals</h2><table>{head}{rows}</table>" if rows else ""


class ClusterPage:
    """A server of the page, from :func:`bursar.ray.serve` until it is closed."""

    def __init__(self, address: str, port: int, read: Callable[[], ClusterState]) -> None:
        self._server = _Server(address, port, read)
        self._thread = threading.Thread(target=self._server.serve_forever, name="bursar-ray-page", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The address of the page."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/"

    def close(self) -> None:
        """Ends the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> ClusterPage:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: str, port: int, read: Callable[[], ClusterState]) -> None:
        super().__init__((address, port), _Handler)
        self.read = read


class _Handler(BaseHTTPRequestHandler):
    timeout = 5

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in ("localhost", "[::1]") and not host.startswith("127."):
            self.send_error(403, "only for this machine")
        elif self.path not in ("/", "/api/state"):
            self.send_error(404)
        else:
            try:
                found = self._read()
            except NoCluster as error:
                self.send_error(503, "no cluster", str(error))
                return
            if self.path == "/":
                self._send("text/html; charset=utf-8", page(found, refresh=5))
            else:
                self._send("application/json", json.dumps(dataclasses.asdict(found), default=str))

    def _read(self) -> ClusterState:
        assert isinstance(self.server, _Server)
        return self.server.read()

    def _send(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing of requests."""


def serve(port: int = 9401) -> ClusterPage:
    """Serves the page, and ``/api/state`` as JSON, on loopback until it is closed. Each request reads the ledgers of the cluster.

    Raises :class:`~bursar.NoCluster` where this program is connected to no cluster, and :class:`~bursar.InvalidValue` where the port
    is taken, as by a page that is served already. Requests are answered with status 503 while there is no connection.
    """
    check_connected()
    try:
        return ClusterPage("127.0.0.1", port, state)
    except (OSError, OverflowError) as error:
        raise InvalidValue(f"the page cannot be served on port {port} of 127.0.0.1: {error}; 0 takes a port that is free") from error
