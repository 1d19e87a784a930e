"""ModernBERT in plain NumPy, float64, written from the paper alone: loops over sequences, heads and tokens, no masks.

Warner et al. 2024 (arXiv 2412.13663), Su et al. 2021 (arXiv 2104.09864), Shazeer 2020 (arXiv 2002.05202).
"""

import numpy as np

from bert_horovod.model.architectures.modernbert_settings import ModernBertModel
from tests.model.reference import gelu

SMALL = ModernBertModel(
    vocab_size=30,
    hidden_size=12,
    num_hidden_layers=5,
    num_attention_heads=3,
    intermediate_size=20,
    max_position_embeddings=64,
    attention_output_dropout_prob=0.0,
    local_attention=4,
    global_rope_theta=500.0,
    local_rope_theta=50.0,
)


def norm(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) * weight


def turned(x: np.ndarray, place: int, theta: float) -> np.ndarray:
    """A query or key as complex numbers, each multiplied by e^(i place theta^(-2 j / size))."""
    half = len(x) // 2
    pairs = x[:half] + 1j * x[half:]
    pairs = pairs * np.exp(1j * place * theta ** (-2 * np.arange(half) / len(x)))
    return np.concatenate([pairs.real, pairs.imag])


def encode(model: ModernBertModel, parameters: dict[str, np.ndarray], ids: np.ndarray) -> list[np.ndarray]:
    """Hidden states of one sequence, [length, hidden] each; parameters by their names in Hugging Face's files."""
    weights = {name: value.astype(np.float64) for name, value in parameters.items()}
    epsilon, size = model.layer_norm_eps, model.hidden_size // model.num_attention_heads
    x = norm(weights["model.embeddings.tok_embeddings.weight"][ids], weights["model.embeddings.norm.weight"], epsilon)
    states = [x]
    for i in range(model.num_hidden_layers):
        name = f"model.layers.{i}"
        normal = norm(x, weights[f"{name}.attn_norm.weight"], epsilon) if i else x
        parts = np.split(normal @ weights[f"{name}.attn.Wqkv.weight"].T, 3, -1)
        full = i % model.global_attn_every_n_layers == 0
        theta = model.global_rope_theta if full else model.local_rope_theta
        context = np.zeros_like(x)
        for head in range(model.num_attention_heads):
            mine = slice(head * size, (head + 1) * size)
            query, key, value = (part[:, mine] for part in parts)
            for place in range(len(ids)):
                seen = [j for j in range(len(ids)) if full or abs(j - place) <= model.local_attention // 2]
                turned_query = turned(query[place], place, theta)
                scores = np.array([turned_query @ turned(key[j], j, theta) for j in seen]) / np.sqrt(size)
                shares = np.exp(scores - scores.max())
                context[place, mine] = shares / shares.sum() @ value[seen]
        x = x + context @ weights[f"{name}.attn.Wo.weight"].T
        inner, gate = np.split(
            norm(x, weights[f"{name}.mlp_norm.weight"], epsilon) @ weights[f"{name}.mlp.Wi.weight"].T, 2, -1
        )
        x = x + gelu(model, inner) * gate @ weights[f"{name}.mlp.Wo.weight"].T
        states.append(x)
    states[-1] = norm(x, weights["model.final_norm.weight"], epsilon)
    return states
