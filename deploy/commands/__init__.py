"""One verb a file: parse, call one thing below, hand the result to the console."""
