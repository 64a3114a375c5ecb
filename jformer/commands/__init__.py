"""The sub-commands: a module each, which reads its flags, calls the library and prints results.

The docstring of a module is what `jformer COMMAND --help` prints. Modules that import JAX are
imported where they are used, so that --help and a mistyped flag answer at once.
"""
