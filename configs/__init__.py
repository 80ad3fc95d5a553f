"""YAML configs, found with `importlib.resources.files("mnemolab.configs")`."""
