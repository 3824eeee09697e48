"""Several processes that train one model: how they are started, wait and fail together."""
