"""The commands: a module each, which declares flags, calls the library and prints results.

`jformer COMMAND --help` prints the docstring of a module with its flags. Modules that import JAX
are imported when used, so that --help and a mistyped flag answer at once.
"""
