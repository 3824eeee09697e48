"""Settings of `make docs`, which makes a site of the pages of this folder, as they
are."""

project = "Seedbed"
html_title = "Seedbed"
html_theme = "furo"
extensions = ["myst_parser"]
exclude_patterns = ["examples/lightning"]
myst_heading_anchors = 3  # links to headings, as the forge has them
