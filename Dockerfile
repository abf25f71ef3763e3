# The README's two commands in a container:
#   docker build -t txl .
#   docker run --rm txl                    (./run_wt103.sh demo)
#   docker run --rm txl ./run_tests.sh
# PyTorch is its CPU build. With a GPU:
#   docker build -t txl --build-arg TORCH_INDEX=https://pypi.org/simple .
#   docker run --rm --gpus all txl
ARG PYTHON_VERSION=3.11
FROM python:${PYTHON_VERSION}-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

# a compiler, for torch.compile; ip, for the tests with two hosts
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ iproute2 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /txl
COPY requirements.txt requirements-dev.txt ./
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" -r requirements-dev.txt
COPY . .
RUN pip install --no-cache-dir --no-deps --editable .

# scripts use this Python as it is
ENV PYTHON=python3
CMD ["./run_wt103.sh", "demo"]
