"""The linear algebra of the kernels: every element of a result is added up term by term, in one order.

So plain numpy gives the same bits, and choices that are equally good are told apart alike everywhere. Inner loops run
along rows: at the size of a factory they are as fast as a library's, whose calls take seconds to compile.
"""

import numpy as np

from fedgs.compiled import composed, kernel
from fedgs.selection.problem import Flags, Floats, Indices


def products_oracle(columns: Floats) -> Floats:
    """Plain numpy version of :func:`products`."""
    found = np.zeros((columns.shape[1], columns.shape[1]))
    for row in columns:
        found += np.outer(row, row)
    return found


@kernel(products_oracle)
def products(columns: Floats) -> Floats:
    """Return the products of all columns of a matrix with each other, CᵀC."""
    terms, size = columns.shape
    found = np.zeros((size, size))
    fours = terms - terms % 4
    for i in range(size):
        for k in range(0, fours, 4):  # in one go over the row, still one term after the other
            first, second, third, fourth = columns[k, i], columns[k + 1, i], columns[k + 2, i], columns[k + 3, i]
            for j in range(i + 1):
                pair = found[i, j] + first * columns[k, j] + second * columns[k + 1, j]
                found[i, j] = pair + third * columns[k + 2, j] + fourth * columns[k + 3, j]
        for k in range(fours, terms):
            factor = columns[k, i]
            for j in range(i + 1):
                found[i, j] += factor * columns[k, j]
        for j in range(i):
            found[j, i] = found[i, j]
    return found


def combine_oracle(rows: Floats, weights: Floats) -> Floats:
    """Plain numpy version of :func:`combine`."""
    # A plain sum would be made in pairs.
    return np.cumsum(rows * weights[:, None], axis=0)[-1] if len(rows) else np.zeros(rows.shape[1])


@kernel(combine_oracle)
def combine(rows: Floats, weights: Floats) -> Floats:
    """Return the weighted sum of the rows of a matrix."""
    terms, size = rows.shape
    found = np.zeros(size)
    for k in range(terms):
        weight = weights[k]
        for i in range(size):
            found[i] += rows[k, i] * weight
    return found


def turned_oracle(matrix: Floats) -> Floats:
    """Plain numpy version of :func:`turned`."""
    return matrix.T.copy()


@kernel(turned_oracle)
def turned(matrix: Floats) -> Floats:
    """Return the transpose, in memory too."""
    rows, columns = matrix.shape
    found = np.empty((columns, rows))
    for i in range(rows):
        for j in range(columns):
            found[j, i] = matrix[i, j]
    return found


def factorise_oracle(matrix: Floats, least: float) -> bool:
    """Plain numpy version of :func:`factorise`."""
    for k in range(len(matrix)):
        if not matrix[k, k] > least:
            return False
        matrix[k, k] = np.sqrt(matrix[k, k])
        matrix[k, k + 1 :] /= matrix[k, k]
        matrix[k + 1 :, k] = 0.0
        matrix[k + 1 :, k + 1 :] -= np.outer(matrix[k, k + 1 :], matrix[k, k + 1 :])
    return True


@kernel(factorise_oracle)
def factorise(matrix: Floats, least: float) -> bool:
    """Replace M by R, upper triangular, with RᵀR = M (Cholesky); False where a pivot is not above ``least``."""
    size = len(matrix)
    for k in range(size):
        if not matrix[k, k] > least:
            return False
        matrix[k, k] = np.sqrt(matrix[k, k])
        for j in range(k + 1, size):
            matrix[k, j] /= matrix[k, k]
        for i in range(k + 1, size):
            factor = matrix[k, i]
            matrix[i, k] = 0.0
            for j in range(i, size):
                matrix[i, j] -= factor * matrix[k, j]
    return True


def solve_factored_oracle(factor: Floats, vector: Floats) -> None:
    """Plain numpy version of :func:`solve_factored`."""
    for k in range(len(vector)):
        vector[k] /= factor[k, k]
        vector[k + 1 :] -= factor[k, k + 1 :] * vector[k]
    for k in range(len(vector) - 1, -1, -1):
        vector[k] /= factor[k, k]
        vector[:k] -= factor[:k, k] * vector[k]


@kernel(solve_factored_oracle)
def solve_factored(factor: Floats, vector: Floats) -> None:
    """Solve RᵀR·x = v into v."""
    size = len(vector)
    for k in range(size):
        vector[k] /= factor[k, k]
        for i in range(k + 1, size):
            vector[i] -= factor[k, i] * vector[k]
    for k in range(size - 1, -1, -1):
        vector[k] /= factor[k, k]
        for i in range(k):
            vector[i] -= factor[i, k] * vector[k]


@composed
def pseudo_solve(matrix: Floats, vector: Floats, least: float) -> Floats:
    """Return M⁺v for a positive semidefinite M: with M = LLᵀ and L of full rank, M⁺ = L(LᵀL)⁻²Lᵀ.

    L, whose columns are the rows found here, comes from a Cholesky factorisation that takes the largest pivot first and
    ends where none is above ``least``.
    """
    size, rank = len(vector), 0
    rows, rest = np.zeros((size, size)), np.empty(size)
    for i in range(size):
        rest[i] = matrix[i, i]
    while rank < size:
        pivot = 0
        for i in range(size):
            if rest[i] > rest[pivot]:
                pivot = i
        if not rest[pivot] > least:
            break
        root = np.sqrt(rest[pivot])
        for i in range(size):
            value = matrix[pivot, i]
            for j in range(rank):
                value -= rows[j, pivot] * rows[j, i]
            rows[rank, i] = value / root
            rest[i] -= rows[rank, i] * rows[rank, i]
        rest[pivot] = 0.0
        rank += 1
    rows = rows[:rank].copy()
    columns = turned(rows)
    square, found = products(columns), combine(columns, vector)
    factorise(square, 0.0)
    solve_factored(square, found)
    solve_factored(square, found)
    return combine(rows, found)


@composed
def ascending(values: Floats) -> Indices:
    """Return where the values stand from the smallest to the largest; equal ones stay in their order."""
    order = np.arange(len(values))
    for i in range(1, len(values)):
        moved, place = order[i], i
        while place > 0 and values[order[place - 1]] > values[moved]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = moved
    return order


@composed
def members(inside: Flags, chosen: Indices) -> None:
    """Put the places that are marked into ``chosen``, in order."""
    found = 0
    for i in range(len(inside)):
        if inside[i]:
            chosen[found] = i
            found += 1
