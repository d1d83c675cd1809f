//! TriAttention selection: scores, normalisation, reduction, choice.
