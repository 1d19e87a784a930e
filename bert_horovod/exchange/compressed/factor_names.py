"""The names of PowerSGD's slots: the factors of a matrix, for its settings and its code. No TensorFlow."""

LEFT, RIGHT = "left_factor", "right_factor"  # slots of a matrix [n, m] in low rank: [n, rank] and [m, rank]
