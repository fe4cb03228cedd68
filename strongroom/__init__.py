"""strongroom: fine-tune language models and keep every checkpoint under durable governance."""

__version__ = "0.1.0"
