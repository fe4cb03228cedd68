"""What is looked at before a training is launched."""
