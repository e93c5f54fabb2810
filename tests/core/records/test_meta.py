"""Meta cells: the codec, and the check of whole columns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.errors import EddylineError, MalformedColumns, RecordTooLarge
from eddyline.core.records import meta as meta_module
from eddyline.core.records.cells import pack_cells
from eddyline.core.records.column import offset_array
from eddyline.core.records.meta import check_meta_cells, decode_meta, encode_meta
from eddyline.core.records.record import META_ENTRIES_MAX, MetaEntry
from tests.support.models.batches import metas


@given(metas)
def test_entries_survive_a_round_trip_in_order_with_repeats(entries: tuple[MetaEntry, ...]) -> None:
    assert decode_meta(encode_meta(entries)) == entries


def test_cell_is_laid_out_as_the_contract_says() -> None:
    assert encode_meta([MetaEntry("é", b"xyz")]) == b"\x02\x00\xc3\xa9\x03\x00\x00\x00xyz"


def test_a_name_of_more_than_a_u16_is_refused() -> None:
    with pytest.raises(RecordTooLarge):
        encode_meta([MetaEntry("n" * 65_536, b"")])


def outcome(cells: list[bytes]) -> type[EddylineError] | None:
    try:
        for cell in cells:
            if len(decode_meta(cell)) > META_ENTRIES_MAX:
                return RecordTooLarge
    except MalformedColumns as error:
        return type(error)
    return None


def spoiled(entries: tuple[MetaEntry, ...], at: int, byte: bytes) -> bytes:
    cell = encode_meta(entries)
    at %= len(cell) + 1
    return cell[:at] + byte + cell[at + 1 :]


mutated = st.builds(spoiled, metas, st.integers(0, 60), st.binary(max_size=2))


@given(st.lists(metas.map(encode_meta) | mutated | st.binary(max_size=12), min_size=1, max_size=8))
def test_checking_in_rounds_agrees_with_decoding(cells: list[bytes]) -> None:
    column = pack_cells(cells, absence=False)
    if column is None:
        return
    try:
        meta_module._check_in_rounds(column.values, offset_array(column.offsets).astype("int64"))
        raised: type[EddylineError] | None = None
    except EddylineError as error:
        raised = type(error)
    assert raised == outcome(cells)


@pytest.mark.parametrize("value", [b"", b"x" * 100])
def test_entries_are_counted(value: bytes) -> None:
    most = encode_meta([MetaEntry("", value)] * META_ENTRIES_MAX)
    column = pack_cells([most, b"", most], absence=False)
    assert column is not None
    check_meta_cells(column)
    column = pack_cells([most, b"", most + encode_meta([MetaEntry("", value)])], absence=False)
    assert column is not None
    with pytest.raises(RecordTooLarge) as raised:
        check_meta_cells(column)
    assert raised.value.metadata["index"] == "2"


def test_a_character_cut_between_two_names_is_refused() -> None:
    cell = b"\x01\x00\xc3\x00\x00\x00\x00" + b"\x01\x00\xa9\x00\x00\x00\x00"
    column = pack_cells([cell] * 30, absence=False)
    assert column is not None
    with pytest.raises(MalformedColumns, match="UTF-8"):
        check_meta_cells(column)
