"""Several processes that train one model: how they connect, communicate and fail
together."""
