"""Reading what a topic is to be, strictly: what is not built yet is refused by name, never passed over.

Serves CreateTopic and `create` of appends. A setting that this version does not know arrives as an unknown field, since a
newer contract has it: passing it over would make a topic that does not do what its owner was told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.unknown_fields import UnknownFieldSet

from eddyline.core.errors import NotYet
from eddyline.core.wire_state import kind_from_pb, topic_config_from_pb
from eddyline.store.append import NewTopic

if TYPE_CHECKING:
    from eddyline.v1 import log_pb2, topic_pb2


def new_topic(request: topic_pb2.Topic | log_pb2.CreateIfMissing) -> NewTopic:
    """Kind and configuration of a topic to make.

    Raises:
        InvalidArgument: no kind. InvalidConfig: a setting is out of its bounds. NotYet: not built yet.
    """
    unknown = UnknownFieldSet(request.config)
    if len(unknown):
        number = unknown[0].field_number
        raise NotYet(f"setting {number} of a topic is not built yet", field="config", fieldNumber=number)
    return NewTopic(kind_from_pb(request.kind), topic_config_from_pb(request.config))
