"""A plugin of mypy that notes where the package reads which key of the config, by their types.

A search of the source for `.steps` or `.name` would take any attribute of that name for the key.
Each line that it adds to the file $KEY_READS is a file, the line there, a section and its key, or
the section's method or property.
"""

import functools
import os

from mypy.plugin import AttributeContext, MethodContext, Plugin

CONFIG = "jformer.config."


class KeyReads(Plugin):
    def get_attribute_hook(self, fullname):
        return functools.partial(read, fullname) if fullname.startswith(CONFIG) else None

    def get_method_hook(self, fullname):
        return functools.partial(called, fullname) if fullname.startswith(CONFIG) else None


def read(fullname: str, context: AttributeContext):
    note(fullname, context)
    return context.default_attr_type


def called(fullname: str, context: MethodContext):
    note(fullname, context)
    return context.default_return_type


def note(fullname: str, context: AttributeContext | MethodContext) -> None:
    *_, section, name = fullname.split(".")
    with open(os.environ["KEY_READS"], "a") as file:
        print(context.api.path, context.context.line, section, name, sep="\t", file=file)


def plugin(version: str):
    return KeyReads
