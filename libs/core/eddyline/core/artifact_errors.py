"""Errors about artifacts, a part of the catalogue in `errors.py`, which everybody takes them from."""

from __future__ import annotations

from eddyline.core.error_root import Code, EddylineError


class ArtifactInvalid(EddylineError):
    """An artifact is not what its manifest says, or the manifest is none that this version reads. Nothing landed.
    Metadata: artifact.

    Operator action: import another artifact, or export the fold anew.
    """

    code, reason = Code.DATA_LOSS, "ARTIFACT_INVALID"


class ArtifactNotFound(EddylineError):
    """No artifact of this topic, or of this name. Metadata: topic, artifact."""

    code, reason = Code.NOT_FOUND, "ARTIFACT_NOT_FOUND"


class ArtifactMismatch(EddylineError):
    """The artifact is of another source than the topic's, or of none where the topic has one. Metadata: topic, artifact.

    Operator action: import into a topic without a source, or with the artifact's.
    """

    code, reason = Code.FAILED_PRECONDITION, "ARTIFACT_MISMATCH"


class ArtifactsNotConfigured(EddylineError):
    """The store was told no place for artifacts, or one that cannot keep a pointer safely.

    Operator action: set EDDYLINE_STORE_ARTIFACTS to a directory or to the URL of an object store, and restart.
    """

    code, reason = Code.FAILED_PRECONDITION, "ARTIFACTS_NOT_CONFIGURED"


class ArtifactsUnreachable(EddylineError):
    """The place for artifacts cannot be reached or does not answer. Metadata: cause."""

    code, reason = Code.UNAVAILABLE, "ARTIFACTS_UNREACHABLE"
