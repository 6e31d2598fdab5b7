"""A folder for ``sys.path``: holds the ``sgl_kernel`` that replaces the compiled one."""
