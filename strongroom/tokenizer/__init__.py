"""What a tokenizer costs on a text, measured."""
