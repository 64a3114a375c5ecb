"""The commands, one module each: it declares flags, calls the library and prints results.

`jformer COMMAND --help` prints the module's docstring and its flags. Modules that import JAX are
imported on use, so that --help and typos respond at once.
"""
