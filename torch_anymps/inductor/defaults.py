"""Settings of Inductor that hold in every thread: what is assigned to its config holds in the context of one thread."""

from types import ModuleType


def set_default(config: ModuleType, name: str, value) -> None:
    """Makes `value` the default of an entry of a config module. What a user has assigned, or an environment variable
    says, goes before it. Objects are copied for each thread that reads them.
    """
    config._config[name].default = value
    config._hash_dirty_var.set(True)
    config._mark_get_dict_dirty(name)
