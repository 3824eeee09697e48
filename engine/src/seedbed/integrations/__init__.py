"""The recorder as a callback of other libraries; each file needs the library of its name."""
