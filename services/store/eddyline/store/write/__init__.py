"""The append path: validate, admit, group commit, apply, publish."""
