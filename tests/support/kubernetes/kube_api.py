"""As much of a Kubernetes API server as Helm asks for a `lookup`: discovery, and objects that were put there."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

KINDS = {
    "v1": ("ConfigMap", "PersistentVolumeClaim", "Service", "ServiceAccount"),
    "apps/v1": ("Deployment", "StatefulSet"),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "batch/v1": ("CronJob",),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "policy/v1": ("PodDisruptionBudget",),
}
"""The resources of the server; Helm requests them before it takes a manifest."""
STATEFUL_SETS = "/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}"
CLAIMS = "/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"
CRON_JOBS = "/apis/batch/v1/namespaces/{namespace}/cronjobs/{name}"


@contextmanager
def kube_api(objects: Mapping[str, object]) -> Iterator[str]:
    """Serve `objects` by their paths, everything else as not found; the address."""
    answers: dict[str, object] = {
        "/version": {"major": "1", "minor": "37", "gitVersion": "v1.37.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [_group(name) for name in KINDS if "/" in name],
        },
        **{f"/{'apis' if '/' in name else 'api'}/{name}": _resources(name, kinds) for name, kinds in KINDS.items()},
        **objects,
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0])
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(status if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _group(group_version: str) -> dict[str, object]:
    group, _, version = group_version.partition("/")
    told = {"groupVersion": group_version, "version": version}
    return {"name": group, "versions": [told], "preferredVersion": told}


def _resources(group_version: str, kinds: Iterable[str]) -> dict[str, object]:
    resources = [{"name": _plural(kind), "namespaced": True, "kind": kind, "verbs": ["get", "list"]} for kind in kinds]
    return {"kind": "APIResourceList", "groupVersion": group_version, "resources": resources}


def _plural(kind: str) -> str:
    word = kind.lower()
    return f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
