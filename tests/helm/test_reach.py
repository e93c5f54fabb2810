"""Reachability of the roles: advertised names, port forwarding, and a shell on a volume."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import kubernetes_validate
import pytest
import yaml

from eddyline.cli.main import parse_arguments
from tests.support.kubernetes.helm import CHART, NAMESPACE, RELEASE, HelmFailed, environ, of_kind, pods, rendered, run
from tests.support.kubernetes.kube_api import kube_api

if TYPE_CHECKING:
    from collections.abc import Sequence

FULL = f"{RELEASE}-eddyline"
ROLES = ("store", "ingest", "delivery")
KUBECTL = """#!/bin/bash
printf '%s\\n' "$*" >> "$CALLS"
[[ $3 == get ]] && printf 'c2VjcmV0'
exit 0
"""
"""Prints its arguments; a Secret's value is the word "secret"."""
SUDO = """#!/bin/bash
[[ $* == "tee -a /etc/hosts" ]] && cat >> "$HOSTS"
"""


def block(document: str) -> str:
    """The commands of a runbook."""
    found: str
    (found,) = re.findall(r"```bash\n(.*?)```", (CHART / "runbooks" / document).read_text(encoding="utf-8"), re.DOTALL)
    return found


def told(sets: Sequence[str] = ()) -> dict[str, list[str]]:
    """The addresses of each role that all roles tell."""
    every = [environ(pod) for role, pod in pods(rendered(sets=sets)) if role in ROLES]
    found = {role: {one[f"EDDYLINE_COMMON_{role.upper()}_ADDRESSES"] for one in every} for role in ROLES}
    assert all(len(addresses) == 1 for addresses in found.values())
    return {role: addresses.pop().split(",") for role, addresses in found.items()}


def notes(*sets: str) -> str:
    with kube_api({}) as address:
        flags = ["--dry-run=server", "--disable-openapi-validation", f"--kube-apiserver={address}"]
        values = [f"--set={one}" for one in sets]
        return run(3, "install", RELEASE, str(CHART), f"--namespace={NAMESPACE}", *flags, *values)


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder with `kubectl` and `sudo` that do nothing but tell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"kubectl": KUBECTL, "sudo": SUDO}.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize("shards", [1, 3])
def test_way_in_gives_every_name_for_clients_an_address_of_its_own(shards: int, commands: Path, tmp_path: Path) -> None:
    calls, hosts = tmp_path / "calls", tmp_path / "hosts"
    settings = f"NS={NAMESPACE} E={FULL} ZONE=cluster.local SHARDS={shards}"
    lines = block("README.md").splitlines()
    script = "\n".join(["set -e", settings, *lines[1:], "wait", "env"])
    assert lines[0].startswith("NS=")
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={"PATH": f"{commands}:{os.environ['PATH']}", "CALLS": str(calls), "HOSTS": str(hosts)},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    written = [line.split() for line in hosts.read_text(encoding="utf-8").splitlines()]
    named = {name: address for address, name in written}
    words = [shlex.split(line) for line in calls.read_text(encoding="utf-8").splitlines()]
    forwarded = {(word[4], word[6]): word[5] for word in words if word[2] == "port-forward"}
    addresses = told([f"store.shards={shards}"])
    assert len(set(named.values())) == len(named) == shards + 2
    for role, of_role in addresses.items():
        for address in of_role:
            host, _, port = address.rpartition(":")
            what = forwarded.pop((named[host], port))
            assert what == (f"pod/{host.partition('.')[0]}" if role == "store" else f"svc/{FULL}-{role}")
    assert not forwarded
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert seen["EDDYLINE_ADDRESS"] == addresses["store"][0]
    assert seen["EDDYLINE_KEY_FILE"] == str(tmp_path / "owner.key")
    assert (tmp_path / "owner.key").read_text(encoding="utf-8") == "secret"
    assert (tmp_path / "owner.key").stat().st_mode & 0o077 == 0
    assert ["-n", NAMESPACE, "get", "secret", "eddyline-access", "-o", r"jsonpath={.data.owner\.key}"] in [
        line.split() for line in calls.read_text(encoding="utf-8").splitlines()
    ]


def test_pod_that_looks_at_a_volume_is_one_that_the_cluster_takes() -> None:
    (text,) = re.findall(r"<<EOF\n(.*?)\n *EOF", block("corrupt-data.md"), re.DOTALL)
    plain = re.sub(r"\$\(.*\)", "image", text).replace("$E", FULL)
    pod = yaml.safe_load(plain)
    kubernetes_validate.validate(pod, "1.37", strict=True)
    (store,) = [spec for role, spec in pods(rendered()) if role == "store"]
    assert pod["spec"]["securityContext"] == store["securityContext"]
    assert pod["spec"]["containers"][0]["securityContext"] == store["containers"][0]["securityContext"]
    (claim,) = [volume["persistentVolumeClaim"] for volume in pod["spec"]["volumes"] if "emptyDir" not in volume]
    (stateful,) = of_kind(rendered(), "StatefulSet")
    (template,) = stateful["spec"]["volumeClaimTemplates"]
    assert claim["claimName"] == f"{template['metadata']['name']}-{stateful['metadata']['name']}-0"


OUTSIDE = {
    "store": ["history.example.com:7701"],
    "ingest": ["in.example.com:7702"],
    "delivery": ["a.example.com:443", "[2001:db8::7]:7703"],
}
ADVERTISED = [f"{role}.advertised={{{','.join(addresses)}}}" for role, addresses in OUTSIDE.items()]


def test_advertised_names_are_used_and_roles_keep_their_own() -> None:
    assert told(ADVERTISED) == told()
    for role, pod in pods(rendered(sets=ADVERTISED)):
        variables = environ(pod)
        assert {
            name: variables[f"EDDYLINE_COMMON_{name.upper()}_ADVERTISED_ADDRESSES"].split(",") for name in OUTSIDE
        } == OUTSIDE, role
    for _, pod in pods(rendered()):
        assert not [name for name in environ(pod) if "ADVERTISED" in name]


def test_stores_are_advertised_one_each_or_one_for_all() -> None:
    three = ["store.shards=3", "store.service.type=LoadBalancer"]
    names = {one["metadata"]["name"] for one in of_kind(rendered(sets=[*three, *ADVERTISED]), "Service")}
    assert [name for name in names if "outside" in name] == [f"{FULL}-store-outside"]
    each = rendered(sets=[*three, "store.advertised={a:1,b:1,c:1}"])
    for shard in range(3):
        (service,) = [
            one for one in of_kind(each, "Service") if one["metadata"]["name"] == f"{FULL}-store-outside-{shard}"
        ]
        assert service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] == f"{FULL}-store-{shard}"
        kubernetes_validate.validate(service, "1.37", strict=True)
    with pytest.raises(HelmFailed, match="2 addresses for 3 stores"):
        rendered(sets=[*three, "store.advertised={a:1,b:1}"])


def test_notes_state_the_names_for_clients() -> None:
    said = notes()
    for addresses in told().values():
        assert all(address in said for address in addresses)
    assert "Clients outside" in said
    assert "spark.key" not in said
    said = notes(*ADVERTISED, "spark.jobs[0].name=audit", "spark.jobs[0].args={-m,x}")
    assert all(address in said for addresses in OUTSIDE.values() for address in addresses)
    assert "Clients outside" not in said
    assert "spark.key" in said


KEYS_KUBECTL = """#!/bin/bash
printf '%s\\n' "$*" >> "$CALLS"
case "$3" in
  create) cat >> "$CALLS.created" ;;
  exec) shift 5; [[ $1 == python ]] && shift && exec "$PYTHON" "$@" ;;
  get) printf 'c2VjcmV0' ;;
esac
"""
"""As KUBECTL, but it keeps created objects and runs the command of a pod."""


def test_commands_of_the_notes_make_the_keys_that_pods_wait_for(commands: Path, tmp_path: Path) -> None:
    (commands / "kubectl").write_text(KEYS_KUBECTL, encoding="utf-8")
    said = notes("access.secret=keys", "image.registry=registry.example.com/team")
    after = said.split("make it, here in a pod")[1].splitlines()[2:]
    script = "\n".join(["set -euo pipefail", *after[: after.index("")]])
    calls = tmp_path / "calls"
    subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={"PATH": f"{commands}:{os.environ['PATH']}", "CALLS": str(calls), "PYTHON": sys.executable},
        capture_output=True,
        timeout=30,
        check=True,
    )
    created = [json.loads(line) for line in Path(f"{calls}.created").read_text(encoding="utf-8").splitlines()]
    pod, secret = created
    for one in created:
        kubernetes_validate.validate(one, "1.37", strict=True)
    (store,) = [spec for role, spec in pods(rendered()) if role == "store"]
    assert pod["spec"]["securityContext"] == store["securityContext"]
    assert pod["spec"]["containers"][0]["image"] == "registry.example.com/team/eddyline-store:0.1.0"
    assert secret["metadata"]["name"] == "keys"
    named = {
        item["key"]
        for _, spec in pods(rendered(values=[CHART / "ci/everything.yaml"]))
        for volume in spec["volumes"]
        if volume["name"] == "access"
        for item in volume["secret"]["items"]
    }
    assert named <= set(secret["data"]), "all that a pod mounts of it"
    assert (tmp_path / "owner.key").read_text(encoding="utf-8") == "secret"
    lines = calls.read_text(encoding="utf-8").splitlines()
    assert all(line.startswith(f"-n {NAMESPACE} ") for line in lines)
    assert f"-n {NAMESPACE} delete pod {pod['metadata']['name']} --now" in lines


def test_command_in_the_cluster_shows_its_own_key_to_names_of_the_cluster() -> None:
    assert not [role for role, _ in pods(rendered()) if role == "tools"]
    made = rendered(sets=["tools.enabled=true", "tools.key=ops.key", *ADVERTISED])
    (pod,) = [spec for role, spec in pods(made) if role == "tools"]
    variables = environ(pod)
    assert variables["EDDYLINE_ADDRESS"].split(",") == told()["store"]
    assert variables["EDDYLINE_KEY_FILE"] == "/etc/eddyline/access/ops.key"
    (access,) = [volume for volume in pod["volumes"] if volume["name"] == "access"]
    assert [item["key"] for item in access["secret"]["items"]] == ["ops.key"]
    assert f"exec deploy/{FULL}-tools -- eddyline status" in notes("tools.enabled=true")


def test_way_in_runs_the_command_in_the_pod_that_the_chart_makes(commands: Path, tmp_path: Path) -> None:
    text = (CHART / "runbooks/README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^    (eddyline\(\) \{.*\})$", text, re.MULTILINE)
    calls = tmp_path / "calls"
    subprocess.run(
        ["bash", "-c", f"NS={NAMESPACE} E={FULL}\n{line}\neddyline source get 'a b' < /dev/null"],
        env={"PATH": f"{commands}:{os.environ['PATH']}", "CALLS": str(calls)},
        capture_output=True,
        timeout=30,
        check=True,
    )
    (deployment,) = [
        one["metadata"]["name"]
        for one in of_kind(rendered(sets=["tools.enabled=true"]), "Deployment")
        if "tools" in one["metadata"]["name"]
    ]
    expected = f"-n {NAMESPACE} exec -i deploy/{deployment} -- eddyline source get a b"
    assert calls.read_text(encoding="utf-8").splitlines() == [expected]


def told_commands() -> list[tuple[str, list[str]]]:
    """Every command of a runbook, with its place."""
    found = []
    for path in sorted((CHART / "runbooks").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        lines = re.findall(r"^    (eddyline [^#|\n]*)", text, re.MULTILINE)
        found += [(path.name, words.split()[1:]) for words in (*lines, *re.findall(r"`(eddyline [a-z][^`]*)`", text))]
    return found


@pytest.mark.parametrize(("book", "words"), told_commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_command_of_a_runbook_is_one_that_there_is(
    book: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    verbs = list(takewhile(lambda word: re.fullmatch(r"[a-z][a-z-]*", word), words))
    options = [word.split("=")[0] for word in words if word.startswith("--")]
    with pytest.raises(SystemExit) as ended:
        parse_arguments([*verbs, "--help"])
    usage = capsys.readouterr().out
    assert ended.value.code == 0, book
    assert all(option in usage for option in options), f"{book}: {options}"


def test_store_answers_from_outside_too_while_it_serves_only_reads() -> None:
    made = rendered(sets=["store.service.type=LoadBalancer"])
    published = {
        one["metadata"]["name"]: one["spec"].get("publishNotReadyAddresses", False) for one in of_kind(made, "Service")
    }
    assert published == {
        f"{FULL}-store": True,
        f"{FULL}-store-outside": True,
        f"{FULL}-ingest": False,
        f"{FULL}-delivery": False,
    }
