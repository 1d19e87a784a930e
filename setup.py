"""Packaging of bert_horovod: the one place that states which versions were tested.

Horovod compiles against the TensorFlow that is already installed, so it is an extra of its own, built second:

    pip install .
    HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 pip install --no-build-isolation '.[horovod]'

`run/setup.sh` does both, and everything they need. Without Horovod, one process works.
"""

from pathlib import Path

from setuptools import find_packages, setup

PARQUET = ["pyarrow>=23,<27"]
RECIPES = Path(__file__).with_name("run") / "recipes"  # absent while an image installs what only versions decide on
ONNX = ["tf2onnx>=1.17,<1.18", "onnx>=1.22,<1.23", "onnxruntime>=1.23,<1.33"]  # tf2onnx 1.16 fails with NumPy 2
# A CUDA compiler that needs no root; run/setup.sh installs it beside .venv to build Horovod, and removes it. All of one
# CUDA release: nvidia-cuda-nvcc would take the newest of the others, and they do not fit together.
NVCC = [
    "nvidia-cuda-nvcc==13.0.*",
    "nvidia-nvvm==13.0.*",
    "nvidia-cuda-crt==13.0.*",
    "nvidia-cuda-runtime==13.0.*",
    "nvidia-cuda-cccl==13.0.*",
]
TENSORFLOW = "2.21.0"  # Horovod 0.28.1 builds against it with the headers of run/horovod_headers

setup(
    name="bert_horovod",
    version="0.1.0",
    description="BERT pre-training for labs with an ordinary cluster: TensorFlow, Horovod, Hugging Face checkpoints",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["bert_horovod", "bert_horovod.*"])
    + (["bert_horovod.recipes"] if RECIPES.is_dir() else []),
    package_dir={"bert_horovod.recipes": "run/recipes"},  # where recipe_files/shipped.py looks for them
    package_data={
        "bert_horovod.recipes": ["*.toml"],
        "bert_horovod.model.gpu_kernels": ["ir/*.ttir"],
        "bert_horovod.reporting": ["page.html"],
        "bert_horovod.runs": ["references/*.json"],
    },
    python_requires=">=3.10,<3.14",
    install_requires=[
        f"tensorflow=={TENSORFLOW}",
        "tensorflow-text==2.21.1",
        "numpy>=2.1,<2.5",
        "mwparserfromhell>=0.6.6,<0.8",
        "absl-py>=2.1,<3",
        "safetensors>=0.4.3,<0.9",
        "tensorboard>=2.20,<2.22",
        "tokenizers>=0.20,<0.24",
        "tomli>=2.0,<3; python_version < '3.11'",
        "tomli-w>=1.0,<2",
        "tqdm>=4.66,<5",
        "zstandard>=0.22,<0.26",
    ],
    extras_require={
        "build": ["cmake>=3.18,<4", "setuptools>=68", "uv>=0.9,<0.14", "wheel"],  # Horovod's build
        "horovod": ["horovod==0.28.1"],
        "mpi": ["mpi4py>=4.0,<5"],
        "gpu": [f"tensorflow[and-cuda]=={TENSORFLOW}"],
        "nvcc": NVCC,
        "onnx": ONNX,
        "parquet": PARQUET,
        "test": [
            *ONNX,
            *PARQUET,
            "hypothesis>=6.100,<7",
            "playwright>=1.45,<2",
            "pytest>=8,<10",
            "pytest-timeout>=2.3,<3",
            "pytest-xdist>=3.7,<4",
            "ruff>=0.8,<0.18",
            "torch>=2.4,<2.14",
            "transformers>=4.46,<6",
        ],
        "docs": ["matplotlib>=3.8,<4"],
    },
    entry_points={"console_scripts": ["bert-horovod = bert_horovod.__main__:main"]},
)
