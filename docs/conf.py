"""Settings of `make docs`, which makes a site of the pages of this folder, as they are."""

project = "Seedbed"
html_title = "Seedbed"
html_theme = "furo"
extensions = ["myst_parser", "autoapi.extension", "sphinx.ext.napoleon"]
exclude_patterns = ["examples/lightning"]
myst_heading_anchors = 3  # links to headings, as the forge has them

# The reference is read from docstrings; nothing is imported, so torch need not be installed.
autoapi_dirs = ["../src"]
autoapi_generate_api_docs = False
autoapi_add_toctree_entry = False
autoapi_python_class_content = "both"
napoleon_use_ivar = True  # "Attributes:" of a class describes those that are annotated, too
suppress_warnings = ["autoapi.python_import_resolution", "ref.python"]  # of constants; `ids`
