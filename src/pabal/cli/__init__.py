"""The command line: it parses, calls the library, prints. One file per group of commands."""
