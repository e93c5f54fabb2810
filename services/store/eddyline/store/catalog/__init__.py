"""What a checkpoint keeps."""
