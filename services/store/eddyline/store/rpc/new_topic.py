"""Reading what a topic is to be, strictly: what is not built yet is refused by name, never passed over.

Serves CreateTopic and `create` of appends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.codec.state import kind_from_pb, topic_config_from_pb
from eddyline.core.model.topic import check_config
from eddyline.store.log.append import NewTopic

if TYPE_CHECKING:
    from eddyline.v1 import log_pb2, topic_pb2


def new_topic(request: topic_pb2.Topic | log_pb2.CreateIfMissing) -> NewTopic:
    """Kind and configuration of a topic to make.

    Raises:
        InvalidArgument: no kind. InvalidConfig: as `check_config`. NotYet: not built yet.
    """
    asked = NewTopic(kind_from_pb(request.kind), topic_config_from_pb(request.config))
    check_config(asked.config, asked.kind)
    return asked
