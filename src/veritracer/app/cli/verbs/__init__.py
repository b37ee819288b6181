"""The verbs of the command line, one module each: they parse, call the library, and print."""
