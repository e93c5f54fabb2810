"""Finding the cluster, and the folder that `up` keeps: file, lock, logs, ports."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from eddyline.cli.errors import CommandError
from eddyline.cli.local_cluster.find import (
    ROLES,
    ClusterFile,
    ClusterPart,
    cluster_address,
    in_order,
    process_names,
    read_cluster_file,
)
from eddyline.cli.local_cluster.folder import (
    LOGS_KEPT,
    last_log_line,
    locked_folder,
    log_path,
    open_log,
    write_cluster_file,
)
from eddyline.cli.local_cluster.ports import PORTS_DEFAULT, choose_ports, free_addresses
from eddyline.cli.local_cluster.settings_check import check_shards, check_sources_file, overridden
from eddyline.core.runtime.clock import SystemHost

if TYPE_CHECKING:
    from pathlib import Path


def parts() -> dict[str, ClusterPart]:
    return {name: ClusterPart(f"127.0.0.1:{number}", number) for number, name in enumerate(ROLES, 100)}


def test_address_argument_precedes_variable_and_folder(tmp_path: Path) -> None:
    write_cluster_file(tmp_path, ClusterFile(parts()))
    environ = {"EDDYLINE_ADDRESS": "env:1"}
    assert cluster_address("asked:1", environ, tmp_path) == "asked:1"
    assert cluster_address("", environ, tmp_path) == "env:1"
    assert cluster_address("", {}, tmp_path) == "127.0.0.1:101,127.0.0.1:103,127.0.0.1:102"


def test_unnamed_cluster_gets_advice(tmp_path: Path) -> None:
    with pytest.raises(CommandError) as caught:
        cluster_address("", {}, tmp_path / "nothing")
    assert "eddyline up" in caught.value.advice


def test_cluster_file_comes_back(tmp_path: Path) -> None:
    write_cluster_file(tmp_path, ClusterFile(parts()))
    assert read_cluster_file(tmp_path) == ClusterFile(parts())
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]


def test_part_that_does_not_run_has_no_pid_that_a_reader_could_signal(tmp_path: Path) -> None:
    down = {**parts(), "store": ClusterPart("127.0.0.1:1", None)}
    write_cluster_file(tmp_path, ClusterFile(down))
    assert '"pid": null' in (tmp_path / "cluster.json").read_text()
    assert read_cluster_file(tmp_path) == ClusterFile(down)
    older = ClusterFile(down).to_json().replace("null", "0")
    (tmp_path / "cluster.json").write_text(older)
    assert read_cluster_file(tmp_path) == ClusterFile(down)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"nats": 1}'])
def test_file_that_is_not_ours_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(CommandError):
        read_cluster_file(tmp_path)


def test_second_process_on_a_folder_names_the_first(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with locked_folder(data, SystemHost()):
        with pytest.raises(CommandError) as caught, locked_folder(data, SystemHost()):
            pass
        assert f"pid {os.getpid()} on {socket.gethostname()}" in caught.value.message
    with locked_folder(data, SystemHost()):
        pass


def test_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CommandError), locked_folder(tmp_path / "file" / "data", SystemHost()):
        pass


def test_logs_are_rotated_at_each_start(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for number in range(LOGS_KEPT + 3):
        descriptor = open_log(tmp_path, "store")
        os.write(descriptor, b"start %d\n\n" % number)
        os.close(descriptor)
    assert last_log_line(tmp_path, "store") == f"start {LOGS_KEPT + 2}"
    assert last_log_line(tmp_path, "other") == ""
    names = sorted(path.name for path in log_path(tmp_path, "store").parent.iterdir())
    assert names == ["store.log", "store.log.1", "store.log.2", "store.log.3"]


def test_ports_are_remembered_and_taken_ones_avoided() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        chosen = choose_ports({"nats": taken}, free_ports=True)
    assert chosen["nats"] != taken
    assert len(set(chosen.values())) == len(PORTS_DEFAULT)
    assert not set(chosen.values()) & set(PORTS_DEFAULT.values())
    assert choose_ports(chosen, free_ports=True) == chosen


def test_further_parts_have_ports_of_their_own_and_keep_them() -> None:
    more = ["store-1", "store-1 metrics"]
    chosen = choose_ports({}, free_ports=True, more=more)
    assert list(chosen) == [*PORTS_DEFAULT, *more]
    assert len(set(chosen.values())) == len(chosen)
    assert choose_ports(chosen, free_ports=True, more=more) == chosen


def test_parts_are_in_order_and_read_back(tmp_path: Path) -> None:
    names = [*process_names("store", 11), "nats", *process_names("delivery", 2), "ingest"]
    assert in_order(reversed(names)) == ["nats", *process_names("store", 11), "ingest", "delivery", "delivery-1"]
    written = {name: ClusterPart(f"127.0.0.1:{port}", port) for port, name in enumerate(in_order(names), 1)}
    write_cluster_file(tmp_path, ClusterFile(written))
    assert read_cluster_file(tmp_path) == ClusterFile(written)
    asked = cluster_address("", {}, tmp_path).split(",")
    assert asked[0] == written["store"].address
    assert set(asked) == {part.address for name, part in written.items() if name != "nats"}


@pytest.mark.parametrize("content", [b"", b"{}\n", b"\xff", b"[]\n", None])
def test_folder_of_another_number_of_shards_is_refused_with_the_way_out(tmp_path: Path, content: bytes | None) -> None:
    check_shards(tmp_path, 3)
    (tmp_path / "store").mkdir()
    if content is not None:
        (tmp_path / "store" / "identity").write_bytes(content)
        check_shards(tmp_path, 3)
    (tmp_path / "store" / "identity").write_bytes(b'{"shard_count":2}\n0123\n')
    check_shards(tmp_path, 2)
    with pytest.raises(CommandError, match="topics on 2 stores, but --shards is 3") as refused:
        check_shards(tmp_path, 3)
    assert "--shards 2" in refused.value.advice


def test_default_port_comes_first_where_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        defaults = {**choose_ports({}, free_ports=True), "store": holder.getsockname()[1]}
        monkeypatch.setattr("eddyline.cli.local_cluster.ports.PORTS_DEFAULT", defaults)
        remembered = choose_ports({}, free_ports=True)
        chosen = choose_ports(remembered, free_ports=False)
    assert chosen == {**defaults, "store": remembered["store"]}


def test_demos_cluster_is_pointed_at(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    write_cluster_file(tmp_path / "demo", ClusterFile(parts()))
    with pytest.raises(CommandError) as caught:
        cluster_address("", {}, tmp_path)
    assert f"--data {tmp_path / 'demo'}" in caught.value.advice


@pytest.mark.parametrize("content", [b"[[source", b"\xff", None])
def test_sources_file_that_is_none_is_wrong_usage(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "sources.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CommandError, match=r"sources\.toml") as caught:
        check_sources_file(path)
    assert caught.value.exit_code == 2


def test_environment_settings_without_effect_are_reported() -> None:
    environ = {"A": "1", "B": "2", "C": "3"}
    assert overridden(environ, {"A": "1", "B": "4", "D": "5"}) == {"B": "4"}


def test_free_addresses_differ_and_are_no_defaults() -> None:
    addresses = free_addresses(6)
    assert len(set(addresses)) == 6
    assert not {int(address.rpartition(":")[2]) for address in addresses} & set(PORTS_DEFAULT.values())
