# Untested: it has not been built yet.
#   docker build -t seedbed .                              # CPU
#   docker build -t seedbed --build-arg DEVICE=cuda .      # NVIDIA GPUs
FROM python:3.11-slim
ARG DEVICE=cpu
ENV PATH=/seedbed/.venv/bin:$PATH
# git records the commit of a run; make is for `make test`, g++ for torch.compile.
RUN apt-get update && apt-get install -y --no-install-recommends g++ git make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /seedbed
COPY . .
# The lock, as `make install` installs it; the CPU's build of PyTorch needs no CUDA packages.
RUN python -m venv .venv && python -m pip install --no-cache-dir --quiet "$(sed -n 's/^UV := //p' Makefile)" \
    && if [ "$DEVICE" = cpu ]; then \
        grep -vE '^(cuda-|nvidia-|triton=)' requirements.txt | uv pip install --no-cache --torch-backend cpu -r -; \
    else uv pip install --no-cache -r requirements.txt -c requirements-hashes.txt; fi \
    && touch .venv/installed
CMD ["python", "train.py"]
